/*
 * The handoff (docs/kv_page.md, "Handoff"), for spin: one sender that may be started again, one receiver that may be,
 * too, and between them a network that loses, duplicates and reorders messages. A handoff has CHUNKS chunks. The sender's
 * second life uses the number of its first handoff again.
 *
 * Messages are a set: a kind of message of a session is on its way or not. So any order is possible, and what is sent
 * again while it is on its way changes nothing. LOSSES, COPIES, DAMAGES, RESTARTS say how often at most each happens.
 *
 * With ONE_SIDED the sender writes into the receiver's memory, whatever the receiver thinks of it by then. Then the
 * transport is reliable (no LOSSES, no COPIES), it completes writes before it hands on what the sender says after them,
 * and nothing of a sender's earlier life arrives after the Hello of the next.
 *
 * What is proved, in every reachable state:
 *   - data is written only to the page that this very handoff was given, or to one in quarantine until the fence;
 *   - the receiver commits only with every chunk in place, at most once, and the sender is done only if it did;
 * and, with weak fairness: every handoff ends on either side, and every abort is acknowledged at some time, so that no
 * page waits for its fence for ever.
 *
 * MUTANT_x takes one precaution away; spin must then find an error (check_models.py).
 */
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef COPIES
#define COPIES 0
#endif
#ifndef DAMAGES
#define DAMAGES 0
#endif
#ifndef SENDER_RESTARTS
#define SENDER_RESTARTS 0
#endif
#ifndef RECEIVER_RESTARTS
#define RECEIVER_RESTARTS 0
#endif

#ifndef CHUNKS
#define CHUNKS 2
#endif
#define ALL_CHUNKS ((1 << CHUNKS) - 1)

/* Messages: kind + 8 * session. */
#define HELLO 0
#define OFFER 1       /* To the receiver. */
#define DATA 2        /* And DATA + 1: the second chunk. */
#define COMMIT 4
#define SAY_HELLO 1   /* To the sender: Reject of the session. */
#define ACCEPT 2
#define REJECT 3
#define DONE 4
#define QUEUED 5      /* Either way. */
#define ABORT 6
#define ABORT_ACK 7
int to_receiver, to_sender;
#define BIT(kind, session) (1 << ((kind) + 8 * (session)))
#define ON_WAY(net, kind, session) ((net & BIT(kind, session)) != 0)
#define PUT(net, kind, session) net = net | BIT(kind, session)
/* To the sender. Its second life passes over what is meant for the first, but for an Abort. */
#define SAY(kind, session) \
  to_sender = to_sender | ((kind) == ABORT || (session) == s_session -> BIT(kind, session) : 0)
byte losses = LOSSES, copies = COPIES, damages = DAMAGES;
byte sender_restarts = SENDER_RESTARTS, receiver_restarts = RECEIVER_RESTARTS;

/* Any message that is on its way and may come now. It may come again. */
inline receive(net, allowed) {
  ready = allowed;
  m = 0;
  do
  :: (ready >> m) & 1 -> break
  :: (ready >> (m + 1)) != 0 -> m++
  od;
  ready = 0;
  if
  :: net = net & ~(1 << m)
  :: copies > 0 -> copies--
  fi;
  kind = m % 8; session = m / 8; m = 0
}

/* The sender. */
#define S_OFFERED 0
#define S_QUEUED 1
#define S_SENDING 2
#define S_AWAITING 3
#define S_DONE 4
#define S_ABORTED 5
byte s_state, s_session, s_sent;
bool s_ready, s_known, s_ending;
#define S_LIVE (s_state < S_DONE)
#define S_ACCEPTED (s_state == S_SENDING || s_state == S_AWAITING)
#define TELL true
#define QUIET false
inline s_abort(tell) {
  s_state = S_ABORTED;
#ifndef MUTANT_SENDS_AFTER_WORD
  s_sent = 0;
#endif
  s_ending = tell && s_known
}

/* The receiver: one key, of whichever session. */
#define NO_SESSION 2
#define R_NONE 0
#define R_OFFERED 1
#define R_RECEIVING 2
byte r_state, r_session = NO_SESSION, r_of, r_stored;  /* r_of: the session of the live handoff; r_stored: a bit a chunk. */
bool r_commit;
bool r_ending;                                         /* Aborted here; the sender's word is awaited. */
byte r_ending_of;
#define NOT_ENDED 0
byte r_answer[2];                                      /* How the handoff of a session ended: a message. */

/* The page that the receiver gives. */
#define FREE 0
#define GIVEN 1
#define QUARANTINED 2
#define KEPT 3        /* The sequence's that runs now. */
byte page, page_of;

/* What really happened. */
bool committed[2];
byte landed[2];       /* A bit a chunk. */

#define MAY_WRITE true
#define WRITES_NO_MORE false
inline r_abort(may_write) {
  if
  :: may_write ->
    r_ending = true; r_ending_of = r_of;
    SAY(ABORT, r_of)
  :: else
  fi;
  if
  :: r_state == R_RECEIVING ->
#ifndef MUTANT_NO_QUARANTINE
    page = (may_write -> QUARANTINED : FREE)
#else
    page = FREE
#endif
  :: else
  fi;
  r_answer[r_of] = ABORT;
  r_state = R_NONE; r_of = 0; r_stored = 0; r_commit = false
}

inline r_fence() {
  r_ending = false; r_ending_of = 0;
  if :: page == QUARANTINED -> page = FREE :: else fi
}

/* Data of a session reaches the page. */
#ifndef ONE_SIDED
#define WRITABLE(session) (page == GIVEN && page_of == session)
#else
#define WRITABLE(session) ((page == GIVEN && page_of == session) || page == QUARANTINED)
#endif

/* What a one-sided transport holds back, until the data that was written before has arrived. */
#define DATA_ON_WAY(session) ((to_receiver & (BIT(DATA, session) | BIT(DATA + 1, session))) != 0)
#define NOTHING 0
#ifndef ONE_SIDED
#define HELD_BACK NOTHING
#else
#ifndef MUTANT_WORD_OVERTAKES
#define WORDS(session) (BIT(COMMIT, session) | BIT(ABORT, session) | BIT(ABORT_ACK, session))
#else
#define WORDS(session) BIT(COMMIT, session)
#endif
#ifndef MUTANT_EARLIER_LIFE
#define NEXT_LIFE BIT(HELLO, 1)
#else
#define NEXT_LIFE NOTHING
#endif
#define HELD_BACK (DATA_ON_WAY(0) * (WORDS(0) | NEXT_LIFE) | DATA_ON_WAY(1) * WORDS(1))
#endif
#define TO_RECEIVER_NOW (to_receiver & ~(HELD_BACK))

active proctype SenderEar() {
  int ready;
  byte m, kind, session;
end:
  do
  :: atomic {
      to_sender != 0 ->
      receive(to_sender, to_sender);
      if
      :: kind == ABORT ->
        if :: session == s_session && S_LIVE -> s_abort(QUIET) :: else fi;
#ifdef MUTANT_ACK_ONLY_KNOWN
        if :: session == s_session -> PUT(to_receiver, ABORT_ACK, session) :: else fi
#else
        PUT(to_receiver, ABORT_ACK, session)
#endif
      :: kind != ABORT && session != s_session
      :: kind == HELLO && session == s_session -> s_ready = true
      :: kind == SAY_HELLO && session == s_session ->
        if
        :: s_ready ->
          s_ready = false; s_ending = false;
          if
          :: S_ACCEPTED -> s_abort(QUIET)
          :: s_state == S_QUEUED -> s_state = S_OFFERED
          :: else
          fi
        :: else
        fi
      :: kind == ABORT_ACK && session == s_session -> s_ending = false
      :: kind == QUEUED && session == s_session ->
        if :: s_state == S_OFFERED -> s_state = S_QUEUED :: else fi
      :: kind == ACCEPT && session == s_session ->
        if :: s_state == S_OFFERED || s_state == S_QUEUED -> s_state = S_SENDING :: else fi
      :: kind == REJECT && session == s_session ->
        if :: S_LIVE -> s_abort(QUIET) :: else fi
      :: kind == DONE && session == s_session ->
        if
        :: s_state == S_AWAITING ->
          assert(committed[session]);
          s_state = S_DONE; s_sent = 0
        :: S_LIVE && s_state != S_AWAITING -> s_abort(TELL)
        :: !S_LIVE
        fi
      fi;
      kind = 0; session = 0
    }
  od
}

/* What the sender says, and says again. */
active proctype SenderMouth() {
end:
  do
  :: atomic { S_LIVE && !s_ready && !ON_WAY(to_receiver, HELLO, s_session) -> PUT(to_receiver, HELLO, s_session) }
  :: atomic {
      s_state == S_OFFERED && s_ready && !ON_WAY(to_receiver, OFFER, s_session) ->
      s_known = true;
      PUT(to_receiver, OFFER, s_session)
    }
#ifndef NO_QUEUE
  :: atomic { s_state == S_QUEUED && !ON_WAY(to_receiver, QUEUED, s_session) -> PUT(to_receiver, QUEUED, s_session) }
#endif
  :: atomic { s_state == S_SENDING && s_sent < CHUNKS -> PUT(to_receiver, DATA + s_sent, s_session); s_sent++ }
  :: atomic {
      ((s_state == S_SENDING && s_sent == CHUNKS) || s_state == S_AWAITING) && !ON_WAY(to_receiver, COMMIT, s_session) ->
      s_state = S_AWAITING;
      PUT(to_receiver, COMMIT, s_session)
    }
  :: atomic { s_ending && !ON_WAY(to_receiver, ABORT, s_session) -> PUT(to_receiver, ABORT, s_session) }
#ifdef MUTANT_SENDS_AFTER_WORD
  :: atomic { s_state == S_ABORTED && s_sent == 1 -> PUT(to_receiver, DATA + s_sent, s_session); s_sent++ }
#endif
  od
}

/* Deadlines, and clients that leave. */
active proctype SenderClock() {
end:
  do
  :: atomic { S_LIVE -> s_abort(TELL) }
  :: atomic { s_ending -> s_ending = false }
  od
}

/* The process ends, and starts anew. */
#if SENDER_RESTARTS > 0
active proctype SenderRestart() {
  atomic {
    s_session == 0 ->
    s_session = 1;
    to_sender = to_sender & BIT(ABORT, 0);
    if
#ifdef ONE_SIDED
    :: to_receiver = to_receiver & (BIT(DATA, 0) | BIT(DATA + 1, 0))  /* What it said is lost with its connection. */
#else
    /* Not all that may be on its way together: that would be too many states. */
    :: to_receiver = to_receiver & (BIT(OFFER, 0) | BIT(DATA, 0) | BIT(DATA + 1, 0) | BIT(COMMIT, 0))
    :: to_receiver = to_receiver & BIT(HELLO, 0)
    :: to_receiver = to_receiver & (BIT(DATA, 0) | BIT(ABORT, 0) | BIT(ABORT_ACK, 0))
#endif
    fi;
    s_state = S_OFFERED; s_sent = 0; s_ready = false; s_known = false; s_ending = false
  }
}
#endif
#if RECEIVER_RESTARTS > 0
active proctype ReceiverRestart() {
  atomic {
    true ->
    r_state = R_NONE; r_session = NO_SESSION; r_of = 0; r_stored = 0; r_commit = false;
    r_ending = false; r_ending_of = 0; r_answer[0] = NOT_ENDED; r_answer[1] = NOT_ENDED;
    page = FREE; page_of = 0
  }
}
#endif

/* What became of an offer? */
inline answer() {
  if
  :: r_state == R_OFFERED -> SAY(QUEUED, session)
  :: r_state == R_RECEIVING -> SAY(ACCEPT, session)
  :: r_state == R_NONE && r_answer[session] != NOT_ENDED -> SAY(r_answer[session], session)
  :: r_state == R_NONE && r_answer[session] == NOT_ENDED -> SAY(ABORT, session)
  fi
}

inline take_data(chunk) {
#ifdef ONE_SIDED
  assert(WRITABLE(session));
  landed[session] = landed[session] | (1 << chunk);
#endif
  if
#ifndef MUTANT_ANY_SESSION
  :: session != r_session -> SAY(SAY_HELLO, session)
  :: session == r_session && r_state == R_NONE
  :: session == r_session && r_state == R_OFFERED -> r_abort(MAY_WRITE)
  :: session == r_session && r_state == R_RECEIVING ->
#else
  :: r_state != R_RECEIVING
  :: r_state == R_RECEIVING ->
#endif
    if
    :: (r_stored >> chunk) & 1
    :: damages > 0 && !((r_stored >> chunk) & 1) ->
      damages--;
      r_abort(MAY_WRITE)
    :: !((r_stored >> chunk) & 1) ->
#ifndef ONE_SIDED
      assert(WRITABLE(session));
      landed[session] = landed[session] | (1 << chunk);
#endif
      r_stored = r_stored | (1 << chunk)
    fi
  fi
}

active proctype ReceiverEar() {
  int ready;
  byte m, kind, session;
end:
  do
  :: atomic {
      TO_RECEIVER_NOW != 0 ->
      receive(to_receiver, TO_RECEIVER_NOW);
      if
      :: kind == HELLO ->
        if
        :: r_session != NO_SESSION && r_session != session ->
          if :: r_state != R_NONE -> r_abort(WRITES_NO_MORE) :: else fi;
          if :: r_ending -> r_fence() :: else fi
        :: else
        fi;
        r_session = session;
        SAY(HELLO, session)
#if !defined(ONE_SIDED) && !defined(MUTANT_ANY_SESSION)
        ; /* What is on its way from the sender's first life changes nothing any more: forgotten, to keep states few. */
        if
        :: session == 1 && !ON_WAY(to_receiver, HELLO, 0) ->
          to_receiver = to_receiver & ~255;
          r_answer[0] = NOT_ENDED; committed[0] = false; landed[0] = 0
        :: else
        fi
#endif
      :: kind == ABORT_ACK ->
        if :: r_ending && r_ending_of == session -> r_fence() :: else fi
      :: kind == DATA || kind == DATA + 1 ->
        take_data(kind - DATA)
      :: (kind == OFFER || kind == COMMIT || kind == QUEUED || kind == ABORT) && session != r_session ->
        SAY(SAY_HELLO, session)
      :: kind == OFFER && session == r_session ->
        if
        :: r_state == R_NONE && r_answer[session] == NOT_ENDED -> r_state = R_OFFERED; r_of = session
        :: else -> answer()
        fi
      :: kind == QUEUED && session == r_session ->
        answer()
      :: kind == COMMIT && session == r_session ->
        if
        :: r_state == R_RECEIVING -> r_commit = true
        :: r_state == R_OFFERED -> r_abort(MAY_WRITE)
        :: r_state == R_NONE -> answer()
        fi
      :: kind == ABORT && session == r_session ->
        if :: r_state != R_NONE -> r_abort(WRITES_NO_MORE) :: else fi;
        if :: r_ending -> r_fence() :: else fi;
        SAY(ABORT_ACK, session)
      fi;
      kind = 0; session = 0
    }
  od
}

/* The engine's answer to an offer, and the commit. */
active proctype ReceiverEngine() {
end:
  do
  :: atomic {
      r_state == R_OFFERED ->
      if
      :: page == FREE ->
        page = GIVEN; page_of = r_of;
        r_state = R_RECEIVING;
        SAY(ACCEPT, r_of)
#ifndef NO_QUEUE
      :: !ON_WAY(to_sender, QUEUED, r_of) -> SAY(QUEUED, r_of)
#endif
      :: r_answer[r_of] = REJECT; SAY(REJECT, r_of); r_state = R_NONE; r_of = 0
      fi
    }
  :: atomic {
      r_state == R_RECEIVING && r_commit &&
#ifndef MUTANT_COMMIT_EARLY
      r_stored == ALL_CHUNKS &&
#endif
      true ->
      assert(landed[r_of] == ALL_CHUNKS && !committed[r_of] && page == GIVEN && page_of == r_of);
      committed[r_of] = true;
      page = KEPT; page_of = 0;
      r_answer[r_of] = DONE;
      SAY(DONE, r_of);
      r_state = R_NONE; r_of = 0; r_stored = 0; r_commit = false
    }
  :: atomic { page == KEPT -> page = FREE }
  od
}

active proctype ReceiverMouth() {
end:
  do
#ifndef MUTANT_ABORT_ONCE
  :: atomic { r_ending && !ON_WAY(to_sender, ABORT, r_ending_of) -> SAY(ABORT, r_ending_of) }
#else
  :: false
#endif
  od
}

/* A deadline, or a client that leaves. */
active proctype ReceiverClock() {
end:
  do
#ifndef MUTANT_NO_DEADLINE
  :: atomic { r_state != R_NONE -> r_abort(MAY_WRITE) }
#else
  :: false
#endif
  od
}

#if LOSSES > 0
active proctype Network() {
  int ready;
  byte m, kind, session;
end:
  do
  :: atomic { losses > 0 && to_receiver != 0 -> losses--; receive(to_receiver, to_receiver); kind = 0; session = 0 }
  :: atomic { losses > 0 && to_sender != 0 -> losses--; receive(to_sender, to_sender); kind = 0; session = 0 }
  od
}
#endif

ltl all_end { ([]<> !S_LIVE) && ([]<> !s_ending) && ([]<> (r_state == R_NONE)) && ([]<> !r_ending) }
