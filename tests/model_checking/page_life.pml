/*
 * The life of a KV page (docs/kv_page.md, "States"), for spin: two pages, three sequences, a prefix cache, a sender that
 * reads, a handoff whose peer writes into a page from afar, a sweep that finds damage, and the audit that rewrites
 * pages. Every sequence may be aborted wherever it waits.
 *
 * What is proved, in every reachable state:
 *   - every change of a page's state is one of life_table (page_pool.pml);
 *   - a write from afar never reaches a page that is free, or that was given to anybody else;
 *   - a lease that passes the check of its tag belongs to the page's present life;
 *   - no page is handed out twice, nor while anybody has it or may write to it;
 *   - the pool's lease count is the number of leases that sequences have, and no lease ends but by its holder or by
 *     quarantine;
 * and, once no more requests come, whatever is done in which order: all is over at some time, and then every page is
 * free or cached.
 *
 * A tag is modelled by what a comparison with it says: tag_fits[s] is whether the lease of sequence s carries its page's
 * tag. That is exact, because no tag is used twice. What all sequences could do is done by one each, to keep the states
 * few: sequence 0 receives, 1 sends and releases too often, 2 only shares.
 *
 * MUTANT_x takes one precaution away; spin must then find an error (check_models.py).
 */
#include "page_pool.pml"

#define MINE page_of[me]
#define RECEIVING (me == RECEIVES && (handoff == OPEN || handoff == COMPLETE))
#define READABLE (state[MINE] == LIVE || state[MINE] == SHARED)

/* One sequence after another: admission, its life with one page, its end. */
proctype Sequence(byte me) {
  byte p;
  do
  :: atomic { closing && MINE == NONE -> break }
  :: atomic {
      !closing && MINE == NONE ->
      if :: p = 0 :: p = 1 fi;
      if
      :: listed[p] > 0 && me < 2 ->
        allocate(me, p)
      /* A prefix hit; or a second answer to the prompt of a sequence that has the page. */
      :: (held[p] && state[p] == CACHED) || ((held[p] || me == 2) && (state[p] == LIVE || state[p] == SHARED)) ->
        share(me, p)
      :: else
      fi;
      p = 0;
      CHECK
    }

  /* A step writes: a page that nobody else has, and that is not the cache's. */
  :: atomic {
      MINE != NONE && me < 2 && current[me] && !closing && !(me == SENDS && sending) &&
      (state[MINE] == RESERVED || (state[MINE] == LIVE && !held[MINE])) ->
      move(MINE, BEGIN_WRITE, WRITING);
      CHECK
    }
  :: atomic {
      MINE != NONE && me < 2 && current[me] && state[MINE] == WRITING ->
      move(MINE, END_WRITE, LIVE);
      CHECK
    }
  /* A step or a sender reads: whatever page it is, if the check of the tag lets it. */
  :: atomic {
      MINE != NONE && tag_fits[me] && !closing &&
      !(current[me] && (state[MINE] == RESERVED || state[MINE] == WRITING || state[MINE] == IN_TRANSFER)) ->
      assert(current[me] && READABLE)
    }
  /* The prompt's page is offered to the prefix cache. */
  :: atomic {
      MINE != NONE && me < 2 && current[me] && !closing && !held[MINE] &&
      (state[MINE] == LIVE || (state[MINE] == SHARED && chained[MINE])) ->
      move(MINE, SET_CACHED, state[MINE]);
      held[MINE] = true; chained[MINE] = true;
      CHECK
    }
  /* The end: an abort, a failed check, all tokens generated. At once, wherever no event is awaited. */
  :: atomic {
      MINE != NONE && !RECEIVING && !(me == SENDS && sending && tag_fits[me]) &&
      !(current[me] && state[MINE] == WRITING) ->
      release(me, MINE);
      if :: me == SENDS -> sending = false :: else fi;
      CHECK
    }

  /* The page is handed to a decode engine: the sequence keeps its lease until the sender's event. */
  :: atomic { me == SENDS && MINE != NONE && current[me] && !sending && !closing && READABLE -> sending = true }
  :: atomic { me == SENDS && sending -> sending = false }
  /* A bug: the lease is given back once more. Its tag is no page's by now. */
  :: atomic {
      me == SENDS && faults > 0 && freed != NONE ->
      faults--;
#ifdef MUTANT_RELEASE_UNCHECKED
      if :: state[freed] != FREE -> state[freed] = FREE; end_life(freed); list_free(freed) :: else fi;
#endif
      freed = NONE;
      CHECK
    }

  /* The page is for a handoff: the peer is told of it, and fills it. */
  :: atomic {
      me == RECEIVES && MINE != NONE && current[me] && state[MINE] == RESERVED && handoff == IDLE &&
      peer == SILENT && !closing ->
      move(MINE, BEGIN_RECEIVE, IN_TRANSFER);
      handoff = OPEN; target = MINE; peer = FILLING;
      CHECK
    }
  /* The last check of the tag, then the commit. */
  :: atomic {
      me == RECEIVES && handoff == COMPLETE && tag_fits[me] ->
      assert(current[me] && stored && !write);
      move(MINE, END_RECEIVE, LIVE);
      handoff = IDLE;
      CHECK
    }
  /* A deadline, the client's end, a chunk that is wrong, a tag that does not fit. The page waits for the peer's word. */
  :: atomic {
      me == RECEIVES && (handoff == OPEN || (handoff == COMPLETE && !tag_fits[me])) ->
      handoff = ABORTED;
      if
      :: quarantine(target, true)
      :: faults > 0 ->
        faults--;
        quarantine(target, false)
      :: true
      fi;
      CHECK
    }
  od
}

/* The other engine, which writes into the page that it was given, once, and the receiver's ear. */
proctype Peer() {
  do
  :: atomic { done -> break }
  :: atomic { peer == FILLING && !posted -> posted = true; write = true }
  :: atomic { peer == FILLING && posted -> peer = WAITING }
  :: atomic {
      peer == WAITING && handoff == OPEN &&
#ifndef MUTANT_COMMIT_EARLY
      stored &&
#endif
      true ->
      handoff = COMPLETE
    }
  /* It hears of our abort; or it gives up itself, or is gone. */
  :: atomic { peer == FILLING || peer == WAITING -> peer = STOPPING }
  /* The transport completes what was written before it hands the word on. */
  :: atomic {
      peer == STOPPING &&
#ifndef MUTANT_WORD_OVERTAKES
      !write &&
#endif
      true ->
      peer = SAID
    }
  /* The handoff is over here, too. */
  :: atomic {
      handoff == IDLE && (peer == SAID || peer == WAITING) ->
      peer = SILENT; target = NONE; posted = false; stored = false
    }
  od
}

/* The peer says that it writes nothing more, or is gone: the receiver hears it, whatever its sequence does by then. */
proctype Receiver() {
  do
  :: atomic { done -> break }
#ifndef MUTANT_NO_CLEAN_UP
  :: atomic {
      peer == SAID && (handoff == OPEN || handoff == ABORTED) ->
      fence(target);
      handoff = IDLE;
      CHECK
    }
#endif
  od
}

/* Writes arrive, at any time or never. */
proctype Network() {
  do
  :: atomic { done -> break }
  :: atomic {
      write ->
      assert((state[target] == IN_TRANSFER && (handoff == OPEN || handoff == ABORTED)) ||
             (state[target] == QUARANTINED && in_flight[target]));
      write = false;
      stored = true
    }
  :: atomic { write -> write = false }
  od
}

/* The prefix cache evicts, and forgets what lies below a page that went to quarantine. */
proctype Cache() {
  byte p;
  do
  :: atomic { done -> break }
  :: atomic {
      held[0] || held[1] ->
      if :: held[0] -> p = 0 :: held[1] -> p = 1 fi;
      drop_cached(p);
      p = 0;
      CHECK
    }
  od
}

/* The check of a step, or a sweep, finds damage in whatever page. */
proctype Sweep() {
  byte p;
  do
  :: atomic { done -> break }
  :: atomic {
      faults > 0 ->
      faults--;
      if :: p = 0 :: p = 1 fi;
      quarantine(p, false);
      p = 0;
      CHECK
    }
  od
}

/* Rewrites what a check failed on, once nobody can write to it any more. */
#ifndef MUTANT_AUDIT_TOO_EARLY
#define AUDITABLE(p) (state[p] == QUARANTINED && check_failed[p] && !in_flight[p])
#else
#define AUDITABLE(p) (state[p] == QUARANTINED && check_failed[p])
#endif
proctype Audit() {
  byte p;
  do
  :: atomic { done -> break }
  :: atomic {
      AUDITABLE(0) || AUDITABLE(1) ->
      if :: AUDITABLE(0) -> p = 0 :: AUDITABLE(1) -> p = 1 fi;
      move(p, AUDIT, FREE);
      list_free(p);
      p = 0;
      CHECK
    }
  od
}

#define SETTLED(p) (state[p] == FREE || state[p] == CACHED)
init {
  atomic {
    listed[0] = 1; listed[1] = 1;
    page_of[0] = NONE; page_of[1] = NONE; page_of[2] = NONE;
    run Sequence(0); run Sequence(1); run Sequence(2);
    run Peer(); run Receiver(); run Network(); run Cache(); run Sweep(); run Audit()
  }
  closing = true;
  atomic {
    page_of[0] == NONE && page_of[1] == NONE && page_of[2] == NONE && handoff == IDLE && peer == SILENT &&
    SETTLED(0) && SETTLED(1) ->
    done = true
  }
}

ltl all_ends { [] (closing -> <> done) }
