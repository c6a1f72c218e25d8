/* The session protocol of docs/protocol.md as a Promela model: a publisher with policy `all`, two replicas of two ranks,
 * decoding that goes on, and an environment that, FAULTS times in all, damages, misplaces or loses a bucket, loses an
 * acknowledgement, cuts a connection, stalls, or kills the publisher or a replica, at any step.
 *
 * Assertions: I1, I2, I4, I5 and I9 at every decode step and flip, I3, no flip without a decision on record, and that an
 * attempt without faults commits everywhere whatever happened before. Liveness: every session ends (I8).
 * check_protocol.py runs spin; MUTATION leaves one rule out, and every one of them is needed.
 *
 * Abstractions: one bucket per rank; content is the version that the bytes belong to; a deadline may pass as soon as
 * something of the session was lost, or by a stall, which is a fault. What lies in a connection that is cut is lost, or
 * still arrives, late. */

#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2 /* to publish; the number is the session's id */
#endif

#define NO_MUTATION 0
#define FLIP_UNPROVEN 1   /* no digests are compared */
#define SKIP_COVERAGE 2   /* a seal is taken with a bucket missing, and what is there is believed */
#define SKIP_SAFE_POINT 3 /* a flip does not wait for the step that reads */
#define LABEL_FIRST 4     /* the label changes before the bytes */
#define SKIP_FENCE 5      /* a message of a replaced session is taken for one of the open session */
#define FLIP_WHEN_READY 6 /* each replica flips when it is ready, whatever becomes of the other */
#define SKIP_RESERVE 7    /* staging writes into the live slot */
#define ONE_RANK_FIRST 8  /* decoding goes on between the flips of two ranks */
#define JOURNAL_LATE 9    /* the decision is written down after the first flip was sent */
#define NO_DEADLINE 10    /* waits never end by themselves */
#ifndef MUTATION
#define MUTATION NO_MUTATION
#endif

#define NOTHING 0
#define WRONG 15 /* bytes in the wrong place, under a good checksum */
#define CONTENT(version) ((version) + 1)

mtype:message = { OFFER, ACCEPT, SEAL, MISSING, READY, FLIP, COMMITTED, ABORT };
mtype:state = { idle, offered, receiving, sealed, ready };
mtype:view = { waiting, is_ready, committed, has_it, failed }; /* what the publisher knows of a replica's session */
mtype:decision = { undecided, flip, give_up };
mtype:verdict = { good, damaged, fenced };

#define AT(r, k) ((r) * 2 + (k)) /* rank k of replica r */

chan to_replica[2] = [3] of { mtype:message, byte /* session */, byte /* version */ };
chan to_publisher[2] = [4] of { mtype:message, byte /* session */, byte /* ranks that miss their bucket; why */ };
chan buckets[4] = [1] of { byte /* session */, byte /* content */, bool /* its checksum holds */ };
chan acks[4] = [2] of { byte /* session */, mtype:verdict };
bool connected[2];
bool hurt[2]; /* something was lost: waits of this replica's session may reach their deadline */

byte faults_left = FAULTS;
bool replica_killed[2];
bool publisher_killed;

/* Replicas. */
mtype:state state[2] = idle;
byte session[2], offered_version[2], label[2];
byte slot[8]; /* contents: two slots of each rank */
bit live[4];
bool gate_closed[2], stepping[2];
#define LIVE(r, k) slot[AT(r, k) * 2 + live[AT(r, k)]]
#define SHADOW(r, k) slot[AT(r, k) * 2 + 1 - live[AT(r, k)]]

/* The publisher. */
byte attempt, open_sessions;
mtype:decision decision = undecided;
mtype:view view[2] = failed;
byte version;
byte journal; /* on disk: the highest version that was decided */

inline Drop(channel_of_three) {
  do
  :: nempty(channel_of_three) -> channel_of_three?_, _, _
  :: empty(channel_of_three) -> break
  od
}

inline DropAcks(k) {
  do
  :: nempty(acks[AT(r, k)]) -> acks[AT(r, k)]?_, _
  :: empty(acks[AT(r, k)]) -> break
  od
}

inline LoseEverythingBetween(r) {
  Drop(to_replica[r]);
  Drop(to_publisher[r]);
  Drop(buckets[AT(r, 0)]);
  Drop(buckets[AT(r, 1)]);
  DropAcks(0);
  DropAcks(1)
}

/* -------------------------------------------------------------------------------------------------- a replica */

#define OF_MY_SESSION(s) (MUTATION == SKIP_FENCE || s == session[r])

/* Nobody may listen any more; if somebody does, the deadline is what it hears. */
inline Answer(what, s, x) {
  if
  :: nfull(to_publisher[r]) -> to_publisher[r]!what(s, x)
  :: full(to_publisher[r]) -> hurt[r] = true
  fi
}

inline Acknowledge(k, s, what) {
  if
  :: nfull(acks[AT(r, k)]) -> acks[AT(r, k)]!s, what
  :: full(acks[AT(r, k)]) -> hurt[r] = true
  fi
}

inline GiveBack() {
  state[r] = idle;
  session[r] = 0;
  offered_version[r] = 0;
  arrived = 0;
  damaged_before = false;
  missing_said = false;
  SHADOW(r, 0) = NOTHING;
  SHADOW(r, 1) = NOTHING
}

inline TakeOffer() {
  if
  :: x <= label[r] -> Answer(ABORT, s, 1) /* version_reused */
  :: else -> state[r] = offered; session[r] = s; offered_version[r] = x
  fi
}

inline TakeBucket(k) {
  if
  :: state[r] != receiving || !OF_MY_SESSION(s) -> Acknowledge(k, s, fenced)
  :: else ->
       if
       :: arrived & (1 << k) -> Acknowledge(k, s, good) /* a duplicate */
       :: !(arrived & (1 << k)) && sound ->
            if
            :: MUTATION == SKIP_RESERVE -> LIVE(r, k) = x
            :: else -> SHADOW(r, k) = x
            fi;
            arrived = arrived | (1 << k);
            Acknowledge(k, s, good)
       :: !(arrived & (1 << k)) && !sound && !damaged_before ->
            damaged_before = true;
            Acknowledge(k, s, damaged)
       :: else -> GiveBack(); Answer(ABORT, s, 0) /* bucket_damaged */
       fi
  fi
}

inline TakeSeal() {
  if
  :: state[r] != receiving || !OF_MY_SESSION(s) -> skip
  :: else ->
       if
       :: arrived == 3 || MUTATION == SKIP_COVERAGE -> state[r] = sealed
       :: arrived != 3 && MUTATION != SKIP_COVERAGE && !missing_said ->
            missing_said = true;
            Answer(MISSING, s, 3 - arrived)
       :: else -> GiveBack(); Answer(ABORT, s, 0) /* buckets_missing */
       fi
  fi
}

#define HOLDS(k) (SHADOW(r, k) == CONTENT(offered_version[r]) || \
                  (MUTATION == SKIP_COVERAGE && !(arrived & (1 << k))) || MUTATION == FLIP_UNPROVEN)

inline FlipRank(k) {
  atomic {
    assert(SHADOW(r, k) == CONTENT(offered_version[r])); /* I4 */
    live[AT(r, k)] = 1 - live[AT(r, k)]
  }
}

inline MakeLive() {
  (!stepping[r] || MUTATION == SKIP_SAFE_POINT);
  if
  :: MUTATION == LABEL_FIRST -> label[r] = offered_version[r]; gate_closed[r] = false
  :: else
  fi;
  FlipRank(0);
  if
  :: MUTATION == ONE_RANK_FIRST -> gate_closed[r] = false
  :: else
  fi;
  FlipRank(1);
  atomic {
    assert(journal >= offered_version[r]); /* decided, on disk */
    assert(offered_version[r] > label[r] || MUTATION == LABEL_FIRST); /* I3 */
    label[r] = offered_version[r];
    s = session[r];
    GiveBack();
    gate_closed[r] = false;
    Answer(COMMITTED, s, 0);
    s = 0
  }
}

/* Version 0 of its checkpoint. */
inline StartFromCheckpoint() {
  label[r] = 0;
  gate_closed[r] = false;
  live[AT(r, 0)] = 0;
  live[AT(r, 1)] = 0;
  GiveBack();
  LIVE(r, 0) = CONTENT(0);
  LIVE(r, 1) = CONTENT(0);
  s = 0;
  x = 0;
  sound = false
}

proctype Replica(byte r) {
  byte s, x;
  bool sound;
  byte arrived; /* bit k: rank k has its bucket */
  bool damaged_before, missing_said;

end_start:
  {
end:
    do
    /* An offer of a newer session fences the open one; in a step of its own, so that its end can be seen. */
    :: atomic { to_replica[r]?[OFFER(_, _)] && state[r] != idle -> GiveBack() }
    :: atomic { state[r] == idle && to_replica[r]?[OFFER(_, _)] ->
         to_replica[r]?OFFER(s, x); TakeOffer(); s = 0; x = 0 }
    :: atomic { state[r] == offered -> state[r] = receiving; Answer(ACCEPT, session[r], 0) }
    :: atomic { buckets[AT(r, 0)]?s, x, sound -> TakeBucket(0); s = 0; x = 0; sound = false }
    :: atomic { buckets[AT(r, 1)]?s, x, sound -> TakeBucket(1); s = 0; x = 0; sound = false }
    :: atomic { to_replica[r]?SEAL(s, x) -> TakeSeal(); s = 0; x = 0 }
    :: atomic { state[r] == sealed ->
         if
         :: HOLDS(0) && HOLDS(1) -> state[r] = ready; Answer(READY, session[r], 0)
         :: else -> s = session[r]; GiveBack(); Answer(ABORT, s, 0); s = 0 /* digest_mismatch */
         fi }
    :: atomic { to_replica[r]?FLIP(s, x) ->
         if
         :: state[r] == ready && OF_MY_SESSION(s) -> gate_closed[r] = true
         :: else
         fi;
         s = 0; x = 0 };
       if
       :: gate_closed[r] -> MakeLive()
       :: else
       fi
    :: atomic { to_replica[r]?ABORT(s, x) ->
         if
         :: state[r] != idle && OF_MY_SESSION(s) -> GiveBack()
         :: else
         fi;
         s = 0; x = 0 }
    :: atomic { state[r] != idle && !connected[r] -> GiveBack() } /* peer_lost; in ready: presumed abort */
    :: atomic { state[r] != idle && hurt[r] && MUTATION != NO_DEADLINE -> s = session[r]; GiveBack(); Answer(ABORT, s, 0); s = 0 } /* deadline */
    od
  } unless { replica_killed[r] };
  atomic {
    !stepping[r] -> replica_killed[r] = false;
    connected[r] = false;
    hurt[r] = true;
    LoseEverythingBetween(r);
    StartFromCheckpoint();
    goto end_start
  }
}

/* A step leases the live version, then every rank reads its slot. Steps of a killed replica die with it. */
proctype Decode(byte r) {
  byte leased;
end_start:
  {
    do
    :: atomic { !gate_closed[r] && !replica_killed[r] -> stepping[r] = true; leased = label[r] };
       assert(LIVE(r, 0) == CONTENT(leased)); /* I1, I2, I5, I9 */
       atomic { assert(LIVE(r, 1) == CONTENT(leased)); stepping[r] = false; leased = 0 }
    od
  } unless { replica_killed[r] };
  atomic { stepping[r] = false; leased = 0; !replica_killed[r] -> goto end_start }
}

/* ---------------------------------------------------------------------------- the publisher's side of one session */

inline Hear() {
  if
  :: s != attempt -> skip /* of an older session */
  :: s == attempt && said == ACCEPT -> accepted = true
  :: s == attempt && said == MISSING -> to_send = x; unacked = x; sealed_once = false
  :: s == attempt && said == READY -> view[r] = is_ready
  :: s == attempt && said == COMMITTED -> view[r] = committed
  :: s == attempt && said == ABORT -> view[r] = (x == 1 -> has_it : failed)
  fi;
  said = 0; s = 0; x = 0
}

inline HearAck(k) {
  if
  :: s == attempt && verdict == good -> unacked = unacked & ~(1 << k)
  :: s == attempt && verdict == damaged -> to_send = to_send | (1 << k)
  :: else
  fi;
  s = 0; verdict = 0
}

/* The environment's hand is on every bucket. */
inline SendBucket(k) {
  to_send = to_send & ~(1 << k);
  if
  :: buckets[AT(r, k)]!attempt, CONTENT(version), true
  :: faults_left > 0 -> faults_left--; buckets[AT(r, k)]!attempt, CONTENT(version), false
  :: faults_left > 0 -> faults_left--; buckets[AT(r, k)]!attempt, WRONG, true
  :: faults_left > 0 -> faults_left--; unacked = unacked & ~(1 << k) /* lost, and acknowledged by mistake */
  fi
}

proctype Session(byte r) {
  mtype:message said;
  mtype:verdict verdict;
  byte s, x;
  byte to_send = 3, unacked = 3; /* bit k: rank k's bucket */
  bool accepted, sealed_once, told;
  {
    atomic { /* a new connection: of the old one nothing is read any more, but what it carried may still arrive */
      Drop(to_publisher[r]);
      DropAcks(0);
      DropAcks(1);
      connected[r] = true;
      hurt[r] = false
    };
    atomic { to_replica[r]!OFFER(attempt, version) };
    do
    :: atomic { to_publisher[r]?said(s, x) -> Hear() }
    :: atomic { acks[AT(r, 0)]?s, verdict -> HearAck(0) }
    :: atomic { acks[AT(r, 1)]?s, verdict -> HearAck(1) }
    :: atomic { accepted && (to_send & 1) && nfull(buckets[AT(r, 0)]) -> SendBucket(0) }
    :: atomic { accepted && (to_send & 2) && nfull(buckets[AT(r, 1)]) -> SendBucket(1) }
    :: atomic { accepted && unacked == 0 && to_send == 0 && !sealed_once && nfull(to_replica[r]) ->
         sealed_once = true; to_replica[r]!SEAL(attempt, version) }
    :: atomic { view[r] == is_ready && !told && (decision == flip || MUTATION == FLIP_WHEN_READY) && nfull(to_replica[r]) ->
         told = true; to_replica[r]!FLIP(attempt, version) }
    :: atomic { view[r] == is_ready && decision == give_up -> view[r] = failed }
    :: atomic { (view[r] == waiting || view[r] == is_ready) && (!connected[r] || (hurt[r] && MUTATION != NO_DEADLINE)) -> view[r] = failed }
    :: atomic { view[r] == committed || view[r] == has_it -> break }
    :: atomic { view[r] == failed ->
         if
         :: connected[r] && nfull(to_replica[r]) -> to_replica[r]!ABORT(attempt, 0)
         :: !connected[r] || full(to_replica[r]) /* the cut says it */
         fi;
         connected[r] = false;
         break }
    od
  } unless { publisher_killed };
  atomic { said = 0; verdict = 0; s = 0; x = 0; to_send = 0; unacked = 0; accepted = 0; sealed_once = 0; told = 0; open_sessions-- }
}

/* ------------------------------------------------------------------------------------------------ the publisher */

active proctype Publisher() {
  byte highest; /* numbers are never reused: a trainer counts on from its own checkpoint */
  byte faults_before;
  bool complete = true;
end_start:
  {
end:
    do
    :: atomic { attempt < ATTEMPTS && open_sessions == 0 && !replica_killed[0] && !replica_killed[1] ->
         attempt++;
         faults_before = faults_left;
         if
         :: complete || journal != version -> highest++; version = highest /* the trainer has moved on */
         :: else /* decided, and not everywhere: finish it */
         fi;
         complete = false;
         decision = undecided;
         view[0] = waiting;
         view[1] = waiting;
         open_sessions = 2;
         run Session(0);
         run Session(1)
       };
       (view[0] != waiting && view[1] != waiting);
       if
       :: view[0] == failed || view[1] == failed -> decision = give_up
       :: else ->
            if
            :: MUTATION != JOURNAL_LATE -> journal = version; decision = flip
            :: MUTATION == JOURNAL_LATE -> decision = flip; journal = version
            fi
       fi;
       atomic { open_sessions == 0 ->
         complete = (view[0] == committed || view[0] == has_it) && (view[1] == committed || view[1] == has_it);
         assert(complete || faults_left < faults_before)
       }
    od
  } unless { publisher_killed };
  atomic { /* the next one reads the journal */
    open_sessions == 0 -> publisher_killed = false; complete = false; goto end_start
  }
}

/* -------------------------------------------------------------------------------------------------- what goes wrong */

inline Cut(replica) {
  r = replica;
  connected[r] = false;
  hurt[r] = true;
  if
  :: true -> LoseEverythingBetween(r)
  :: skip /* it arrives later */
  fi
}

active proctype Environment() {
  byte r;
end:
  do
  :: atomic { faults_left > 0 ->
       if
       :: r = 0
       :: r = 1
       fi;
       if
       :: connected[r] -> Cut(r)
       :: connected[r] && !hurt[r] -> hurt[r] = true /* a stall */
       :: !replica_killed[r] -> replica_killed[r] = true
       :: attempt > 0 && !publisher_killed -> publisher_killed = true; Cut(0); Cut(1)
       :: nempty(acks[AT(r, 0)]) -> acks[AT(r, 0)]?_, _; hurt[r] = true
       :: nempty(acks[AT(r, 1)]) -> acks[AT(r, 1)]?_, _; hurt[r] = true
       fi;
       faults_left--;
       r = 0
     }
  :: faults_left == 0 -> break
  od
}

init {
  atomic {
    slot[0] = CONTENT(0);
    slot[2] = CONTENT(0);
    slot[4] = CONTENT(0);
    slot[6] = CONTENT(0);
    run Replica(0);
    run Replica(1);
#ifndef NO_DECODING
    run Decode(0) /* the replicas are alike */
#endif
  }
}

#ifdef LIVENESS
ltl every_session_ends { [] (state[0] != idle -> <> (state[0] == idle)) }
#endif
