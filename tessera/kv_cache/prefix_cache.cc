#include "tessera/kv_cache/prefix_cache.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::kv_cache {

namespace {

// Only what nobody writes to may be given to others.
bool is_complete(PageState state) { return state == PageState::kLive || state == PageState::kShared; }

}  // namespace

// One page of one chain, or, without a page, the root of a scope. A node is pinned while it or any node below it is
// leased; only what is not pinned can be evicted, leaves first.
struct PrefixCache::Node {
  ChainKey key{};
  Lease page;  // page.page is 0 in a root.
  std::vector<std::int32_t> tokens;
  std::uint64_t last_used = 0;
  bool leased = false;
  std::int64_t pinned_children = 0;
  Node* parent = nullptr;
  // Children are a doubly linked list: a system prompt may have very many.
  Node* first_child = nullptr;
  Node* next_sibling = nullptr;
  Node* previous_sibling = nullptr;

  bool is_root() const { return parent == nullptr; }
  bool pinned() const { return leased || pinned_children > 0; }
};

struct PrefixCache::State final : CachedPageObserver {
  struct KeyHash {
    std::size_t operator()(const ChainKey& key) const {
      std::size_t first = 0;
      std::memcpy(&first, key.data(), sizeof(first));
      return first;
    }
  };
  struct Root {
    PrefixScope scope;
    Node node;
  };

  State(PagePool& pool_in, ops::Stream& stream_in, ChainHash hash_in)
      : pool(pool_in),
        stream(stream_in),
        hash(hash_in),
        by_page(static_cast<std::size_t>(pool_in.counts().total + 1)) {}

  PagePool& pool;
  ops::Stream& stream;
  const ChainHash hash;
  std::unordered_map<ChainKey, std::unique_ptr<Root>, KeyHash> roots;
  std::unordered_map<ChainKey, std::unique_ptr<Node>, KeyHash> nodes;
  std::vector<Node*> by_page;
  // What evict may take now: nodes that are neither pinned nor have children, by last use.
  std::map<std::uint64_t, Node*> evictable_leaves;
  std::int64_t evictable = 0;  // Nodes that are not pinned.
  std::uint64_t clock = 0;     // Counts uses; no two nodes have the same last_used.

  void lease_began(PageId page) override { set_leased(*by_page[page], true); }
  void leases_ended(PageId page) override { set_leased(*by_page[page], false); }
  void quarantined(PageId page) override { drop_subtree(by_page[page]); }

  void update_leaf(Node& node) {
    if (node.is_root()) return;
    if (node.first_child == nullptr && !node.pinned()) {
      evictable_leaves.emplace(node.last_used, &node);
    } else {
      evictable_leaves.erase(node.last_used);
    }
  }

  void touch(Node& node) {
    evictable_leaves.erase(node.last_used);
    node.last_used = ++clock;
    update_leaf(node);
  }

  // To be called after a change that made the node pinned, or not; passes it on upwards as far as it matters.
  void pinned_changed(Node& changed) {
    for (Node* node = &changed; !node->is_root(); node = node->parent) {
      update_leaf(*node);
      Node& parent = *node->parent;
      const bool was = parent.pinned();
      evictable += node->pinned() ? -1 : 1;
      parent.pinned_children += node->pinned() ? 1 : -1;
      if (parent.pinned() == was) return;
    }
  }

  void set_leased(Node& node, bool leased) {
    const bool was = node.pinned();
    node.leased = leased;
    if (node.pinned() != was) pinned_changed(node);
  }

  Node* find_root(const PrefixScope& scope) const {
    const auto it = roots.find(root_chain_key(scope, pool.layout().page_size));
    return it == roots.end() || it->second->scope != scope ? nullptr : &it->second->node;
  }

  Node* find_child(const Node& parent, std::span<const std::int32_t> tokens) const {
    const auto it = nodes.find(hash(parent.key, tokens));
    if (it == nodes.end()) return nullptr;
    Node& node = *it->second;
    // The key alone proves nothing: a collision is a miss. With the parent's identity compared in each step, so are all
    // tokens before.
    return node.parent == &parent && std::ranges::equal(node.tokens, tokens) ? &node : nullptr;
  }

  void add_child(Node& parent, std::unique_ptr<Node> owned) {
    Node& node = *owned;
    node.parent = &parent;
    node.next_sibling = parent.first_child;
    if (parent.first_child != nullptr) parent.first_child->previous_sibling = &node;
    parent.first_child = &node;
    by_page[node.page.page] = &node;
    nodes.emplace(node.key, std::move(owned));
    node.last_used = ++clock;
    ++evictable;  // As if not leased; set_leased corrects it.
    update_leaf(parent);
    update_leaf(node);
    set_leased(node, true);
  }

  // Forgets a node without children and gives its page back.
  void remove(Node& node) {
    TESSERA_CHECK(node.first_child == nullptr);
    if (node.pinned()) set_leased(node, false);
    --evictable;
    evictable_leaves.erase(node.last_used);
    Node& parent = *node.parent;
    if (node.previous_sibling != nullptr) node.previous_sibling->next_sibling = node.next_sibling;
    if (node.next_sibling != nullptr) node.next_sibling->previous_sibling = node.previous_sibling;
    if (parent.first_child == &node) parent.first_child = node.next_sibling;
    by_page[node.page.page] = nullptr;
    const base::Status dropped = pool.drop_cached(stream, node.page);
    TESSERA_CHECK(dropped.ok(), dropped.message());
    const ChainKey key = node.key;
    nodes.erase(key);
    update_leaf(parent);
    if (parent.is_root() && parent.first_child == nullptr) {
      const ChainKey root_key = parent.key;
      roots.erase(root_key);
    }
  }

  void drop_subtree(Node* top) {
    Node* node = top;
    while (true) {
      while (node->first_child != nullptr) node = node->first_child;
      const bool last = node == top;
      Node* parent = node->parent;
      remove(*node);
      if (last) return;
      node = parent;
    }
  }

  std::int64_t evict(std::int64_t pages) {
    std::int64_t freed = 0;
    while (freed < pages && !evictable_leaves.empty()) {
      remove(*evictable_leaves.begin()->second);
      ++freed;
    }
    return freed;
  }

  // Calls visit(node) for each node of the longest chain that matches, at most pages_max of them.
  template <typename Visit>
  void walk(const PrefixScope& scope, std::span<const std::int32_t> tokens, std::int64_t pages_max, Visit&& visit) {
    TESSERA_CHECK(scope.format == pool.layout().format, "the cache's pages have another format");
    Node* node = find_root(scope);
    const std::int64_t page_size = pool.layout().page_size;
    const std::int64_t pages = std::min(pages_max, std::ssize(tokens) / page_size);
    for (std::int64_t j = 0; j < pages && node != nullptr; ++j) {
      node = find_child(*node, tokens.subspan(static_cast<std::size_t>(j * page_size), pool.layout().page_size));
      if (node != nullptr) visit(*node);
    }
  }
};

PrefixCache::PrefixCache(PagePool& pool, ops::Stream& stream, ChainHash hash)
    : state_(std::make_unique<State>(pool, stream, hash)) {
  pool.set_cached_page_observer(state_.get());
}

PrefixCache::~PrefixCache() {
  while (!state_->roots.empty()) state_->drop_subtree(state_->roots.begin()->second->node.first_child);
  state_->pool.set_cached_page_observer(nullptr);
}

std::vector<Lease> PrefixCache::match(const PrefixScope& scope, std::span<const std::int32_t> tokens,
                                      std::int64_t max_pages) {
  std::vector<Lease> leases;
  state_->walk(scope, tokens, max_pages, [&](Node& node) {
    state_->touch(node);
    leases.push_back(state_->pool.share(state_->stream, node.page));
  });
  return leases;
}

std::int64_t PrefixCache::match_length(const PrefixScope& scope, std::span<const std::int32_t> tokens) const {
  std::int64_t pages = 0;
  state_->walk(scope, tokens, std::ssize(tokens), [&](const Node&) { ++pages; });
  return pages;
}

void PrefixCache::insert(const PrefixScope& scope, std::span<const std::int32_t> tokens, std::span<Lease> leases) {
  State& s = *state_;
  const std::size_t page_size = static_cast<std::size_t>(s.pool.layout().page_size);
  TESSERA_CHECK(scope.format == s.pool.layout().format, "the cache's pages have another format");
  TESSERA_CHECK(tokens.size() / page_size >= leases.size(), "only whole pages can be cached");
  Node* parent = s.find_root(scope);
  for (std::size_t j = 0; j < leases.size(); ++j) {
    const std::span<const std::int32_t> page_tokens = tokens.subspan(j * page_size, page_size);
    if (parent != nullptr) {
      if (Node* existing = s.find_child(*parent, page_tokens); existing != nullptr) {
        s.touch(*existing);
        parent = existing;
        continue;
      }
    }
    const ChainKey root_key = parent == nullptr ? root_chain_key(scope, s.pool.layout().page_size) : ChainKey{};
    const ChainKey key = s.hash(parent == nullptr ? root_key : parent->key, page_tokens);
    Lease& lease = leases[j];
    const PageOwner owner = chain_owner(key);
    const bool takable = s.pool.is_current(lease) && is_complete(s.pool.state(lease.page)) &&
                         s.pool.position(lease.page) == static_cast<std::int32_t>(j) &&
                         (s.pool.lease_count(lease.page) == 1 || lease.owner == owner) &&
                         s.by_page[lease.page] == nullptr;
    if (!takable || s.nodes.contains(key)) return;
    if (parent == nullptr) {
      auto root = std::make_unique<State::Root>();
      root->scope = scope;
      root->node.key = root_key;
      parent = &root->node;
      const bool added = s.roots.emplace(root_key, std::move(root)).second;
      TESSERA_CHECK(added, "two prefix scopes have one key");
    }
    lease = s.pool.set_cached(s.stream, lease, owner);
    auto node = std::make_unique<Node>();
    node->key = key;
    node->page = lease;
    node->tokens.assign(page_tokens.begin(), page_tokens.end());
    Node* added = node.get();
    s.add_child(*parent, std::move(node));
    parent = added;
  }
}

std::int64_t PrefixCache::evict(std::int64_t pages) { return state_->evict(pages); }

void PrefixCache::drop(PageId page) {
  TESSERA_CHECK(page >= 0 && page < std::ssize(state_->by_page));
  if (Node* node = state_->by_page[page]; node != nullptr) state_->drop_subtree(node);
}

std::int64_t PrefixCache::clear() { return state_->evict(pages()); }

std::int64_t PrefixCache::evictable() const { return state_->evictable; }

std::int64_t PrefixCache::pages() const { return std::ssize(state_->nodes); }

}  // namespace tessera::kv_cache
