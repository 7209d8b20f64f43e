/*
 * What page_life.pml knows of the page pool: its table of transitions, its records, and what each of its functions does.
 * The table is that of tessera/kv_cache/page_life.h; a test of kv_cache compares them.
 */
#define PAGES 2
#define SEQUENCES 3
#define RECEIVES 0
#define SENDS 1
#define NONE PAGES

/* States. */
#define FREE 0
#define RESERVED 1
#define WRITING 2
#define LIVE 3
#define SHARED 4
#define CACHED 5
#define IN_TRANSFER 6
#define QUARANTINED 7

/* Events. */
#define ALLOCATE 0
#define BEGIN_WRITE 1
#define END_WRITE 2
#define BEGIN_RECEIVE 3
#define END_RECEIVE 4
#define SHARE 5
#define RELEASE 6
#define SET_CACHED 7
#define DROP_CACHED 8
#define QUARANTINE 9
#define FENCE 10
#define AUDIT 11

/* From, event, to. */
c_decl {
  static const unsigned char life_table[][3] = {
    {FREE, ALLOCATE, RESERVED},
    {RESERVED, BEGIN_WRITE, WRITING},
    {LIVE, BEGIN_WRITE, WRITING},
    {WRITING, END_WRITE, LIVE},
    {RESERVED, BEGIN_RECEIVE, IN_TRANSFER},
    {IN_TRANSFER, END_RECEIVE, LIVE},
    {LIVE, SHARE, SHARED},
    {SHARED, SHARE, SHARED},
    {CACHED, SHARE, LIVE},
    {RESERVED, RELEASE, FREE},
    {LIVE, RELEASE, FREE},
    {LIVE, RELEASE, CACHED},
    {SHARED, RELEASE, SHARED},
    {SHARED, RELEASE, LIVE},
    {IN_TRANSFER, RELEASE, QUARANTINED},
    {LIVE, SET_CACHED, LIVE},
    {SHARED, SET_CACHED, SHARED},
    {LIVE, DROP_CACHED, LIVE},
    {SHARED, DROP_CACHED, SHARED},
    {CACHED, DROP_CACHED, FREE},
    {FREE, QUARANTINE, QUARANTINED},
    {RESERVED, QUARANTINE, QUARANTINED},
    {WRITING, QUARANTINE, QUARANTINED},
    {LIVE, QUARANTINE, QUARANTINED},
    {SHARED, QUARANTINE, QUARANTINED},
    {CACHED, QUARANTINE, QUARANTINED},
    {IN_TRANSFER, QUARANTINE, QUARANTINED},
    {QUARANTINED, QUARANTINE, QUARANTINED},
    {IN_TRANSFER, FENCE, RESERVED},
    {QUARANTINED, FENCE, QUARANTINED},
    {QUARANTINED, FENCE, FREE},
    {QUARANTINED, AUDIT, FREE},
  };
  /* Whether the table has the change. Says so of each row when it is taken first. */
  static int in_life_table(int from, int event, int to) {
    static char taken[sizeof(life_table) / 3];
    for (unsigned i = 0; i < sizeof(life_table) / 3; i++) {
      if (life_table[i][0] != from || life_table[i][1] != event || life_table[i][2] != to) continue;
      if (!taken[i]) printf("taken: %d %d %d\n", from, event, to);
      taken[i] = 1;
      return 1;
    }
    return 0;
  }
}

/* What the pool knows of a page. */
byte state[PAGES];
byte leases[PAGES];
bool held[PAGES];          /* By the prefix cache. */
bool chained[PAGES];       /* Its owner is its chain, no longer its sequence. */
bool check_failed[PAGES];  /* Why it is in quarantine: either or both. */
bool in_flight[PAGES];
byte listed[PAGES];        /* How often it is on the free list. */

/* The one lease that a sequence has, on page_of. It is current as long as the pool did not end it. */
byte page_of[SEQUENCES];
bool current[SEQUENCES];
bool tag_fits[SEQUENCES];
bool ended[SEQUENCES];     /* By a quarantine; it was not given back yet. */
byte freed = NONE;         /* A page whose life ended when SENDS gave it back: to be released once more. */
bool sending;              /* A sender reads SENDS's page, until its event. */

/* The handoff to RECEIVES, as the receiver and as its peer see it. */
#define IDLE 0
#define OPEN 1      /* Accepted; the peer fills the page. */
#define COMPLETE 2  /* The peer has said Commit, and nothing is missing: the last check is to be made. */
#define ABORTED 3   /* Here; the peer's word is awaited. */
byte handoff;
byte target = NONE;        /* The page that the peer was given. */
#define SILENT 0
#define FILLING 1   /* May post its write. */
#define WAITING 2   /* Has said Commit, and writes nothing more. */
#define STOPPING 3  /* Posts nothing any more; its last write may be on its way. */
#define SAID 4      /* AbortAck or Abort, or that it is gone, is there. */
byte peer;
bool posted;
bool write;                /* On its way. */
bool stored;               /* Arrived. */

bool closing;              /* No more requests come. */
bool done;
byte faults = 1;           /* Damages that are found, and second releases: so many. */

byte from, event, to;      /* Of the change that is being made; 0 between changes. */
bool in_table;

/* The only statement that changes a page's state. */
inline move(p, e, t) {
  from = state[p]; event = e; to = t;
  c_code { now.in_table = in_life_table(now.from, now.event, now.to); };
  assert(in_table);
  state[p] = to;
  from = 0; event = 0; to = 0; in_table = false
}

#define ON(s, p) (page_of[s] == p && current[s])
#define LEASES(p) (ON(0, p) + ON(1, p) + ON(2, p))
#define BY_PEER(p) (target == p && (peer == FILLING || write))

inline end_lease(s, p) {
#ifndef MUTANT_TAG_STAYS
  if :: page_of[s] == p -> tag_fits[s] = false :: else fi;
#endif
  if :: ON(s, p) -> current[s] = false; ended[s] = true :: else fi
}

/* The page's life is over: its tag changes, before anybody else can have it. */
inline end_life(p) {
  end_lease(0, p);
  end_lease(1, p);
  end_lease(2, p);
  leases[p] = 0; held[p] = false; chained[p] = false
}

inline list_free(p) { check_failed[p] = false; in_flight[p] = false; listed[p]++ }

inline take(s, p) { leases[p]++; page_of[s] = p; current[s] = true; tag_fits[s] = true }

inline allocate(s, p) {
  assert(listed[p] == 1 && LEASES(p) == 0 && !held[p] && !BY_PEER(p));
  listed[p]--;
  move(p, ALLOCATE, RESERVED);
  take(s, p)
}

inline share(s, p) {
  if
  :: state[p] == CACHED ->
    move(p, SHARE, LIVE)
  :: else ->
    move(p, SHARE, SHARED)
  fi;
  take(s, p)
}

/* The last lease ends a page's life, unless the cache holds it; and a peer's page waits for the peer's word. */
inline release(s, p) {
  if
  :: current[s] ->
    leases[p]--;
    current[s] = false;
    if
    :: leases[p] > 1 ->
      move(p, RELEASE, SHARED)
    :: leases[p] == 1 ->
      move(p, RELEASE, LIVE)
    :: leases[p] == 0 && held[p] ->
      move(p, RELEASE, CACHED)
#ifndef MUTANT_FREE_IN_TRANSFER
    :: leases[p] == 0 && state[p] == IN_TRANSFER ->
      move(p, RELEASE, QUARANTINED);
      in_flight[p] = true;
      end_life(p)
#else
    :: state[p] == IN_TRANSFER ->
      state[p] = FREE;
      end_life(p);
      list_free(p)
#endif
    :: leases[p] == 0 && !held[p] && state[p] != IN_TRANSFER ->
      move(p, RELEASE, FREE);
      end_life(p);
      list_free(p);
      if :: s == SENDS -> freed = p :: else fi
    fi
  :: else ->
    assert(ended[s]);  /* No lease ends without its holder but by quarantine. */
    ended[s] = false
  fi;
  page_of[s] = NONE; tag_fits[s] = false
}

inline quarantine(p, flight) {
  if
  :: state[p] == QUARANTINED
  :: else ->
    if :: state[p] == FREE -> listed[p]-- :: else fi;
#ifndef MUTANT_CHECK_HIDES_FLIGHT
    in_flight[p] = (state[p] == IN_TRANSFER);
#endif
    end_life(p)
  fi;
  move(p, QUARANTINE, QUARANTINED);
  if
  :: flight -> in_flight[p] = true
  :: !flight -> check_failed[p] = true
  fi
}

inline fence(p) {
  if
  :: state[p] == IN_TRANSFER ->
    move(p, FENCE, RESERVED)
  :: state[p] == QUARANTINED && in_flight[p] && check_failed[p] ->
    move(p, FENCE, QUARANTINED);
    in_flight[p] = false
  :: state[p] == QUARANTINED && in_flight[p] && !check_failed[p] ->
    move(p, FENCE, FREE);
    list_free(p)
  :: else
  fi
}

inline drop_cached(p) {
  held[p] = false;
  if
#ifndef MUTANT_NO_PIN
  :: leases[p] == 0 ->
    move(p, DROP_CACHED, FREE);
#else
  :: true ->
    state[p] = FREE;
#endif
    end_life(p);
    list_free(p)
#ifdef MUTANT_NO_PIN
    ; ended[0] = false; ended[1] = false; ended[2] = false
#endif
#ifndef MUTANT_NO_PIN
  :: leases[p] == 1 ->
    move(p, DROP_CACHED, LIVE)
  :: leases[p] > 1 ->
    move(p, DROP_CACHED, SHARED)
#endif
  fi
}

/* After every action on the pool: accounts that balance. */
#define SOUND(p) ( \
    leases[p] == LEASES(p) && listed[p] == (state[p] == FREE) && \
    (state[p] == QUARANTINED) == (check_failed[p] || in_flight[p]) && \
    ((state[p] == FREE || state[p] == QUARANTINED) -> (leases[p] == 0 && !held[p]) : \
     (state[p] == CACHED -> (leases[p] == 0 && held[p]) : \
      (state[p] == SHARED -> leases[p] > 1 : \
       (leases[p] == 1 && (state[p] == LIVE || !held[p]))))))
#define CHECK assert(SOUND(0) && SOUND(1))
