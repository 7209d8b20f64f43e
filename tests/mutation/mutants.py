"""The mutants: every comparison that stands between a wrong page and a client, and what it is weakened to.

A site is a piece of a source file, found by its surroundings: «» marks what is replaced, and the whole text must occur
exactly once in the file (white space counts as equal). So a change of the source that moves a check is a change here.
"""

import dataclasses

VERIFY = "tessera/backends/cpu/reference/verify.cc"
PAGES = "tessera/backends/cpu/reference/pages.cc"
DIGESTS = "tessera/backends/cpu/simd/digests.cc"
VERIFIER = "tessera/kv_cache/verifier.cc"
CHECKER = "tessera/kv_cache/digest_checker.cc"
SWEEP = "tessera/kv_cache/page_sweep.cc"
PREFIX = "tessera/kv_cache/prefix_cache.cc"
CHAIN = "tessera/kv_cache/chain_key.cc"
STEP = "tessera/engine/step_runner.cc"
LOOP = "tessera/engine/engine_loop.cc"
INTEGRITY = "tessera/engine/engine_loop_integrity.cc"
ENDS = "tessera/engine/engine_loop_ends.cc"
SEQUENCE_PAGES = "tessera/engine/sequence_pages.cc"
MOVES = "tessera/engine/engine_loop_handoff.cc"
HANDOFF = "tessera/kv_transfer/handoff.cc"
RECEIVER = "tessera/kv_transfer/receiver.cc"
STORER = "tessera/kv_transfer/chunk_storer.cc"
GATHERER = "tessera/kv_transfer/chunk_gatherer.cc"


@dataclasses.dataclass(frozen=True)
class Site:
    file: str
    text: str
    becomes: tuple  # Each is one mutant. A piece that ends in ";" is a statement, else an expression.
    equivalent: str = ""  # Why no test can tell these mutants from the real code; then they must survive.


SITES = [
    # ---- The op: range, tag, owner, position. ----
    Site(VERIFY, "if («id < 1» || id >= p.records.num_pages)", ("false", "id < 0")),
    Site(VERIFY, "|| «id >= p.records.num_pages») {", ("false", "id > p.records.num_pages")),
    Site(VERIFY, "if («found == expected») return;",
         ("true", "found >= expected", "found <= expected", "((found ^ expected) >> 1) == 0",
          "static_cast<std::uint32_t>(found) == static_cast<std::uint32_t>(expected)", "expected == 0 || found == expected",
          "found == 0 || found == expected")),
    Site(VERIFY, "«passed = false;»", ("",)),
    Site(VERIFY, "«compare(ops::kCheckTag, p.records.tags[id], p.expected_tags[entry]);»", ("",)),
    Site(VERIFY, "«compare(ops::kCheckOwner, p.records.owners[id], p.expected_owners[entry]);»", ("",)),
    Site(VERIFY, "compare(ops::kCheckPosition, static_cast<std::uint64_t>(static_cast<std::int64_t>(p.records.positions[id])), "
         "«static_cast<std::uint64_t>(logical_page)»);",
         ("static_cast<std::uint64_t>(static_cast<std::int64_t>(p.records.positions[id]))", "static_cast<std::uint64_t>(j)")),
    # ---- Write slots. ----
    Site(VERIFY, "if («position < p.write_starts[r]» ||", ("false", "position + 1 < p.write_starts[r]")),
    Site(VERIFY, "|| «position < 0» ||", ("false",)),
    Site(VERIFY, "|| «position >= p.kv_lens[r]») return", ("false", "position > p.kv_lens[r]")),
    Site(VERIFY, "if («page == ops::kNullPage») return refuse", ("false",)),
    Site(VERIFY, "if («slot != expected») return refuse(expected);",
         ("false", "slot / p.page_size != expected / p.page_size", "slot % p.page_size != expected % p.page_size",
          "slot > expected", "slot < expected")),
    Site(VERIFY, "if («leases != 1») {", ("false", "leases > 1", "leases < 1", "leases > 2 || leases < 1")),
    # ---- Lengths, loops, and what is made of the verdict. ----
    Site(VERIFY, "return «p.kv_lens[r] >= 0» &&", ("true",)),
    Site(VERIFY, "&& «p.kv_lens[r] <= p.max_pages_per_row * p.page_size»;",
         ("true", "p.kv_lens[r] <= p.max_pages_per_row * p.page_size + 1")),
    Site(VERIFY, "= «j < pages» ? checked_page", ("j + 1 < pages", "j > 0 && j < pages", "false")),
    Site(VERIFY, "for (std::int64_t t = 0; «t < p.tokens»; ++t) { const std::int32_t r", ("t + 1 < p.tokens", "t < 1")),
    Site(VERIFY, "TESSERA_CHECK(«r >= 0» &&", ("true",)),
    Site(VERIFY, "&& «r < p.rows»);", ("true",)),
    Site(VERIFY, "slot = «length_fits(p, r)» ? checked_slot", ("true",)),
    Site(VERIFY, "«verdict.failed_checks |= check;»", ("", "verdict.failed_checks = check;")),
    Site(VERIFY, "if («verdict.failed_checks == 0») {", ("true",)),
    Site(VERIFY, "const bool passed = «p.verdicts[r].failed_checks == 0»;",
         ("true", "(p.verdicts[r].failed_checks & ~ops::kCheckSlot) == 0")),
    Site(VERIFY, "p.sanitized_kv_lens[r] = «passed ? p.kv_lens[r] : 0»;", ("p.kv_lens[r]",)),
    Site(VERIFY, "if («!passed») std::fill_n", ("false",)),
    Site(VERIFY, "if («p.verdicts[p.token_rows[t]].failed_checks != 0») p.sanitized_slots[t]", ("false",)),
    # ---- The digests: reference and SIMD. ----
    Site(PAGES, "if («found != params.recorded[page]») {",
         ("false", "found < params.recorded[page]", "found > params.recorded[page]",
          "static_cast<std::uint32_t>(found) != static_cast<std::uint32_t>(params.recorded[page])")),
    Site(PAGES, "for (std::int32_t layer = 0; «layer < layout.num_layers»; ++layer) { found +=",
         ("layer + 1 < layout.num_layers", "layer < 1")),
    Site(PAGES, "for (std::int32_t slot = 0; «slot < slots»; ++slot) digest +=", ("slot + 1 < slots",)),
    Site(DIGESTS, "|| «found == params.recorded[page]») {",
         ("true", "found >= params.recorded[page]", "found <= params.recorded[page]",
          "static_cast<std::uint32_t>(found) == static_cast<std::uint32_t>(params.recorded[page])")),
    Site(DIGESTS, "for (std::int32_t slot = 0; «slot < slots»; ++slot) sum +=", ("slot + 1 < slots",)),
    Site(DIGESTS, "parallel_for(«params.count * layout.num_layers»,",
         ("params.count * layout.num_layers - 1", "(params.count - 1) * layout.num_layers")),
    # ---- The verifier: two records that share no copy, two verdicts, and the views that it hands out. ----
    Site(VERIFIER, "«tags_[r * width + j] = row.leases[j].tag;»",
         ("tags_[r * width + j] = input.records.tags[input.page_table[r * width + j]];",
          "tags_[r * width + j] = input.records.tags[row.leases[j].page];")),
    Site(VERIFIER, "«owners_[r * width + j] = row.leases[j].owner;»",
         ("owners_[r * width + j] = input.records.owners[row.leases[j].page];",)),
    Site(VERIFIER, "kv_lens_.push_back(«row.kv_len»);", ("row.write_start",)),
    Site(VERIFIER, "write_starts_.push_back(«row.write_start»);", ("0", "row.write_start - 1")),
    Site(VERIFIER, "return CheckedPages{ops::VerifiedPages(«a.sanitized_table», a.sanitized_kv_lens", ("input.page_table",)),
    Site(VERIFIER, "ops::VerifiedPages(a.sanitized_table, «a.sanitized_kv_lens»", ("a.kv_lens",)),
    Site(VERIFIER, "ops::WritableSlots(«a.sanitized_slots», tokens)", ("a.slot_mapping",)),
    Site(VERIFIER, "«backend_.verify_pages(stream, last_);»", ("",)),
    Site(VERIFIER, "«checked_after_ = true;»", ("",)),
    Site(VERIFIER, "if («verdicts_[r].failed_checks == 0») verdicts_[r] = verdicts_after_[r];", ("false", "true")),
    # ---- Bytes against what was recorded of them: pages alone, and those of a step. ----
    Site(CHECKER, "verdict = «verified[i].failed_checks != 0» ? verified[i]", ("true", "false")),
    Site(CHECKER, "«verdicts[r].failed_checks == 0» ? base::ceil_div", ("true",)),
    Site(CHECKER, "if («found.failed_checks == 0») continue;", ("true", "r > 0 || found.failed_checks == 0")),
    Site(CHECKER, "for (std::size_t first = 0; «first < entries_.size()»;", ("first + 1 < entries_.size()",)),
    Site(CHECKER, ".kv_len = «std::max(filled, 1)»,", ("1",)),
    Site(CHECKER, ".first_logical_page = «std::max(pool.position(lease.page), 0)»})", ("0",)),
    Site(CHECKER, "if («is_byte_damage(verdict)») verdict.logical_page", ("true", "false")),
    Site(CHECKER, "for (std::size_t done = 0; «done < leases.size()»;)", ("done < std::min<std::size_t>(leases.size(), 1)",)),
    Site(SWEEP, "return «state == PageState::kLive» ||", ("false",)),
    Site(SWEEP, "|| «state == PageState::kShared» ||", ("false",)),
    Site(SWEEP, "|| «state == PageState::kCached»;", ("false",)),
    Site(SWEEP, "«now < next_») return pages;", ("false",)),
    Site(SWEEP, "«unseen > 0» &&", ("unseen > 1",)),
    Site(SWEEP, "if («is_in_use(state)») --unseen;", ("true", "may_be_read(state)")),
    Site(SWEEP, "last_ = «last_ >= counts.total» ?", ("last_ + 1 >= counts.total",)),
    Site(INTEGRITY, "if («!kv_cache::is_byte_damage(verdict)» ||", ("false",)),
    Site(INTEGRITY, "return lease.page == verdict.page_id && «pool_->is_current(lease)»;", ("true",)),
    Site(INTEGRITY, "if («!parts_.backend.health().ok()») return 0;", ("false",)),
    Site(INTEGRITY, "if («failed(verdicts[i])» &&", ("false", "i > 0 && failed(verdicts[i])")),
    Site(INTEGRITY, "while (end < prefix.size() && «pool_->is_current(prefix[end])») ++end;", ("true",)),
    Site(INTEGRITY, "while (begin < end && «proved_.contains(prefix[begin].tag)») ++begin;", ("true", "false")),
    Site(INTEGRITY, "copies.empty() || «prove(copies, \"prompt to be cached\") == copies.size()»;", ("true",)),
    Site(INTEGRITY, "const bool bytes = «kv_cache::is_byte_damage(verdicts[i])»;", ("false",)),
    Site(ENDS, "if («bytes && config_.integrity.level == kv_cache::IntegrityLevel::kDigest») mark_readers", ("false", "bytes")),
    Site(ENDS, "if («sequence.state == SequenceState::kReceiving») continue;", ("false",)),
    Site(ENDS, "if («sender_->state(sequence.send_id) == kv_transfer::SendState::kAwaitingCommit») continue;", ("false",)),
    Site(ENDS, "recomputes() && !sequence.aborted && «!wrong_already»;", ("true",)),
    Site(LOOP, "if («may_cache_prompt(sequence)») pages_->cache_prompt", ("true",)),
    Site(LOOP, "cache_prompt(sequence); if («sequence.read_damage») {", ("false",)),
    Site(SEQUENCE_PAGES, "if («kv_cache::is_byte_damage(verdict)») return true;", ("false", "true")),
    Site(SEQUENCE_PAGES, "verdict.page_id == lease.page && «!pool_.is_current(lease)» &&", ("false",)),
    Site(SEQUENCE_PAGES, "&& !one_page) || «record_is_wrong»)", ("false",)),
    Site(SEQUENCE_PAGES, "for (std::int64_t j = 0; «cached < whole && j < cached»; ++j)", ("false",)),
    Site(STEP, "if («has(kv_cache::IntegrityLevel::kDigest)») digest_written", ("false",)),
    Site(STORER, "if («options_.integrity >= kv_cache::IntegrityLevel::kDigest») {", ("false",)),
    # ---- What an engine makes of the verdicts. ----
    Site(STEP, "«verifier_->check_after(stream);»", ("",)),
    Site(STEP, "if («verdict.failed_checks != 0») {",
         ("false", "(verdict.failed_checks & ops::kCheckTag) != 0", "r > 0 && verdict.failed_checks != 0",
          "r + 1 < rows.size() && verdict.failed_checks != 0")),
    Site(STEP, "byte_verdicts.empty() || «verdicts[r].failed_checks != 0» ?", ("true", "false")),
    Site(STEP, "«outcome.result = RowResult::kCheckFailed;»", ("",)),
    Site(LOOP, "if («outcome.result == RowResult::kCheckFailed») {", ("false",)),
    Site(LOOP, "if («sequence.read_damage») { // By a row before", ("false",)),
    Site(ENDS, "const bool wrong_already = «sequence.read_damage && !sequence.generated.empty()»;", ("sequence.read_damage",)),
    # ---- A device that failed proves nothing and condemns nothing. ----
    Site(LOOP, "if («!device_works()») return true; ++counters_.steps;", ("false",)),
    Site(MOVES, "if («!device_works()») return true; if (sender_ != nullptr) { for", ("false",)),
    Site(ENDS, "const base::Status status = audit(); if («!device_works()») return;", ("false",)),
    Site(INTEGRITY, "if («!parts_.backend.health().ok()») return 0;", ("false",)),
    Site(ENDS, "«pages_->quarantine(sequence, verdict);»", ("",)),
    Site(ENDS, "may_recompute && «sequence.integrity_recomputes < integrity.recomputes_max») {",
         ("false", "sequence.integrity_recomputes <= integrity.recomputes_max")),
    # ---- The handoff: what is gathered, stored and committed. ----
    Site(GATHERER, "«verifier_->check_after(stream_);»", ("",)),
    Site(GATHERER, "read_verdicts(stream_)[0]; if («verdict.failed_checks != 0») return std::unexpected", ("false",)),
    Site(GATHERER, "static_cast<std::size_t>(count)))) { if («verdict.failed_checks != 0») return std::unexpected",
         ("false",)),
    Site(STORER, "«verifier_->check_after(stream_);»", ("",)),
    Site(STORER, "if («verdict.failed_checks != 0») return std::unexpected", ("false",)),
    Site(RECEIVER, "storer->check(target(handoff)); if («verdict.failed_checks != 0») {", ("false",)),
    Site(RECEIVER, "verified = handoff.machine.verify(); «!verified.ok()») {", ("false",)),
    Site(RECEIVER, "noted = handoff->machine.commit(commit.combined_digest); if («!noted.ok()»)", ("false",)),
    Site(RECEIVER, "if («other_size» ||", ("false",)),
    Site(RECEIVER, "|| «data.num_pages > options.chunk_pages_max») {", ("false",)),
    Site(RECEIVER, "if («sent[k] != (*found)[k]») failed.push_back", ("false",)),
    Site(HANDOFF, "if («sent[k] != found[k]») {", ("false", "sent[k] < found[k]", "sent[k] > found[k]")),
    Site(HANDOFF, "if («digests_[at] != digests[static_cast<std::size_t>(i)]») {", ("false",)),
    Site(HANDOFF, "if («known == chunk.num_pages») return ChunkKind::kDuplicate;", ("true",)),
    Site(HANDOFF, "if («known == 0») return ChunkKind::kNew;", ("known < chunk.num_pages",)),
    Site(HANDOFF, "if («chunk.layer < 0» ||", ("false",)),
    Site(HANDOFF, "|| «chunk.layer >= shape_.num_layers» ||", ("false",)),
    Site(HANDOFF, "|| «chunk.num_pages < 1» ||", ("false",)),
    Site(HANDOFF, "|| «chunk.first_page < first_page_» ||", ("false",)),
    Site(HANDOFF, "|| «chunk.first_page + chunk.num_pages > shape_.num_pages») {",
         ("false", "chunk.first_page + chunk.num_pages > shape_.num_pages + 1")),
    Site(HANDOFF, "&& «*commit_digest_ != combined_digest») {", ("false",)),
    Site(HANDOFF, "|| «missing_ > 0») return false;", ("false", "missing_ > 1")),
    Site(HANDOFF, "if («*commit_digest_ != combined_digest_») {",
         ("false", "*commit_digest_ < combined_digest_", "*commit_digest_ > combined_digest_")),
    # ---- The prefix cache: a hit is the same tokens after the same parent, in the same scope. ----
    Site(PREFIX, "return «node.parent == &parent» &&", ("true",)),
    Site(PREFIX, "&& «std::ranges::equal(node.tokens, tokens)» ?", ("true", "node.tokens.front() == tokens.front()")),
    Site(PREFIX, "|| «it->second->scope != scope» ?", ("false",),
         equivalent="roots are found by the SHA-256 of their scope; two scopes of one key cannot be made"),
    Site(PREFIX, "takable = «s.pool.is_current(lease)» &&", ("true",)),
    Site(PREFIX, "&& «is_complete(s.pool.state(lease.page))» &&", ("true",)),
    Site(PREFIX, "&& «s.pool.position(lease.page) == static_cast<std::int32_t>(j)» &&", ("true",)),
    Site(PREFIX, "&& («s.pool.lease_count(lease.page) == 1» ||", ("true",)),
    Site(PREFIX, "&& «s.by_page[lease.page] == nullptr»;", ("true",)),
    Site(PREFIX, "|| «s.nodes.contains(key)») return;", ("false",)),
    Site(CHAIN, "«hash.add_text(scope.tenant);»", ("",)),
    Site(CHAIN, "«hash.add_text(scope.model_digest);»", ("",)),
    Site(CHAIN, "«hash.add_integer(static_cast<std::uint8_t>(scope.format));»", ("",)),
    Site(CHAIN, "«hash.add_integer(static_cast<std::uint8_t>(scope.provenance));»", ("",)),
    Site(CHAIN, "«hash.add(parent.data(), parent.size());»", ("",)),
    Site(CHAIN, "«hash.add(tokens.data(), tokens.size_bytes());»", ("",)),
]
