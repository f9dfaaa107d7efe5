------------------------------- MODULE Disks -------------------------------
(***************************************************************************)
(* The safety of a pair whose data directories may be copies or outdated   *)
(* (docs/decisions/0010). A disk is separate from the process that uses it. *)
(* An image of a disk may be taken at any time, may replace the disk of the *)
(* same node while that is stopped, and may be started on another host next *)
(* to the original. The model covers INV-11 (generations), INV-12 (mark) and *)
(* INV-13 (no truncation of committed entries); Broken disables each rule. *)
(* Lockstep.tla covers late messages, forced failovers and pauses. To limit *)
(* the state space, a message and its effect are one step here.            *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Hosts,      \* h1 and h2 are the pair's; a third one is for a copy
  MaxConfig,  \* bounds of the exploration
  MaxTerm,
  MaxLog,
  MaxCrashes,
  MaxStarts,
  MaxImages,
  MaxPlaces,  \* how often an image replaces the disk of a host
  MaxLate,    \* swaps with a delayed outcome
  MaxApart,   \* copies started while the original runs and cannot be contacted
  Broken      \* names of disabled rules

VARIABLES
  record,     \* the pair's record: config, term, active, inSync
  mark,       \* the pair's high-water mark (INV-12)
  late,       \* swaps in flight: each may be applied at any time, or never
  disk,       \* disk of each host, or None
  proc,       \* process of each host, or Down
  image,      \* the image that was taken, or None
  acked,      \* the longest acknowledged history
  runs,       \* number of process starts so far; also the generation of the last process
  left,       \* remaining numbers of bounded actions
  moved,      \* TRUE when an image has replaced a disk
  apart,      \* TRUE when a copy was started that could not contact the original
  gone,       \* TRUE when the only complete disk was replaced by an image that the mark distinguishes from it
  excuses,    \* the documented windows entered so far, in which acknowledged entries may be lost
  broken      \* violations that were observed

vars == <<record, mark, late, disk, proc, image, acked, runs, left, moved, apart, gone, excuses, broken>>

Nodes == {1, 2}
Other(n) == 3 - n
None == [node |-> 0]
Down == [up |-> FALSE]
Off(rule) == rule \in Broken
Min(a, b) == IF a <= b THEN a ELSE b
Max(a, b) == IF a >= b THEN a ELSE b

Below(f, g) == f.config < g.config \/ (f.config = g.config /\ f.term < g.term)
Higher(f, g) == IF Below(f, g) THEN g ELSE f
FenceOf(r) == [config |-> r.config, term |-> r.term]

IsPrefix(s, t) == Len(s) <= Len(t) /\ SubSeq(t, 1, Len(s)) = s
\* The number of entries that two logs have in common.
Common(s, t) ==
  CHOOSE k \in 0..Min(Len(s), Len(t)) :
    /\ SubSeq(s, 1, k) = SubSeq(t, 1, k)
    /\ k = Min(Len(s), Len(t)) \/ s[k + 1] # t[k + 1]

\* An entry consists of its term and the generation that wrote it, so that two generations in one term are distinguishable.
Entry(t, r) == [term |-> t, run |-> r]
LastTerm(log) == IF log = <<>> THEN 0 ELSE log[Len(log)].term

\* Absent from inSync.
Absent == [inc |-> 0, run |-> 0]
Listed(r, n) == r.inSync[n] # Absent

\* INV-12.
Reached(log) == Len(log) >= mark.len /\ LastTerm(log) >= mark.term

Long == <<Entry(1, 1), Entry(1, 1)>>
Disk(n, log, known) == [node |-> n, inc |-> 1, run |-> n, claimed |-> 0, log |-> log, known |-> known,
                        fence |-> [config |-> 1, term |-> 1], loss |-> FALSE]

Start0(both) == [config |-> 1, term |-> 1, active |-> 1,
                 inSync |-> [n \in Nodes |-> IF n = 1 \/ both THEN [inc |-> 1, run |-> n] ELSE Absent]]

Process(r, boot, rec) ==
  [up |-> TRUE, run |-> r, boot |-> boot, rec |-> rec, role |-> "idle",
   term |-> 0,                    \* term in which it is active
   floor |-> rec.term,            \* terms up to this one may have been used by this node
   commit |-> 0,
   peer |-> [run |-> 0, len |-> 0], \* the acknowledging standby, and the number of acknowledged entries
   pend |-> {},                   \* own swaps that may have been applied, or may still be
   named |-> FALSE,               \* the record has listed this generation
   ahead |-> FALSE,               \* committed entries of a standby are missing on this active
   met |-> FALSE,                 \* it was connected to its active since its start
   unasked |-> FALSE]             \* it became active without a response from the other node

\* Initially, an image of one disk exists, taken before the last acknowledgement; more may be taken. The standby is in sync or not. The last
\* acknowledged entry is sealed in the logs and reported to the coordinator, or not.
Init ==
  \E both, sealed, marked \in BOOLEAN :
    LET rec == Start0(both)
        known == IF sealed THEN 2 ELSE 1
        second == IF both THEN Long ELSE <<Entry(1, 1)>>
    IN /\ record = rec
       /\ mark = IF marked THEN [by |-> 1, term |-> 1, len |-> 2] ELSE [by |-> 0, term |-> 0, len |-> 0]
       /\ disk = [h \in Hosts |-> IF h = 1 THEN Disk(1, Long, known) ELSE IF h = 2 THEN Disk(2, second, Min(known, Len(second))) ELSE None]
       /\ proc = [h \in Hosts |->
            IF h = 1 THEN [Process(1, {1}, rec) EXCEPT !.role = "active", !.term = 1, !.named = TRUE, !.commit = 2,
                                                       !.peer = [run |-> 2, len |-> Len(second)]]
            ELSE IF h = 2 THEN [Process(2, {2}, rec) EXCEPT !.named = both, !.met = TRUE] ELSE Down]
       /\ \E n \in Nodes : image = Disk(n, <<Entry(1, 1)>>, 1)
       /\ late = {}
       /\ acked = Long
       /\ runs = 2
       /\ left = [crashes |-> MaxCrashes, starts |-> MaxStarts, images |-> MaxImages, places |-> MaxPlaces, late |-> MaxLate,
                  apart |-> MaxApart]
       /\ moved = FALSE /\ apart = FALSE /\ gone = FALSE
       /\ excuses = {} /\ broken = {}

-----------------------------------------------------------------------------
(* Listed and complete disks *)

\* The record lists this disk's store, with one of the two generations on it.
Names(r, d) ==
  /\ d # None /\ Listed(r, d.node) /\ ~d.loss
  /\ r.inSync[d.node].inc = d.inc
  /\ r.inSync[d.node].run \in {d.run, d.claimed} \/ Off("RUN")

\* Neither generations nor the mark distinguish an image from the disk from which it was taken.
InWindow(d) == Reached(d.log) /\ record.inSync[d.node].run \in {d.run, d.claimed}

\* A disk listed in the record has all acknowledged entries.
KeptBy(r, disks, a) == \E h \in Hosts : Names(r, disks[h]) /\ IsPrefix(a, disks[h].log)

\* INV-11: the listed generation is that of this process, or one in the directory at its start. The latter are discarded when the process
\* reads a record that does not list its node.
Owns(s, run) == run = s.run \/ run \in s.boot \/ Off("RUN")
Forgets(r, n) == ~Listed(r, n) /\ ~Off("FORGET")

\* INV-4, INV-6, INV-11.
Eligible(h) ==
  LET s == proc[h] d == disk[h] m == s.rec.inSync[d.node]
  IN m # Absent /\ m.inc = d.inc /\ Owns(s, m.run) /\ ~d.loss

\* A directory detected as an older image or a copy may have lost entries (INV-6).
RolledBack(d) == [d EXCEPT !.loss = TRUE]
\* When the record no longer lists the disk, it must not match any older entry again.
Cleared(d) == IF d.loss THEN [d EXCEPT !.loss = FALSE, !.inc = @ + 1] ELSE d

Up(h) == proc[h].up
OfNode(n) == {h \in Hosts : disk[h] # None /\ disk[h].node = n /\ Up(h)}
Current(h) == Up(h) /\ proc[h].rec = record

-----------------------------------------------------------------------------
(* Disks *)

\* One machine or both fail.
Crash(down) ==
  /\ down # {} /\ left.crashes > 0 /\ \A h \in down : Up(h)
  /\ proc' = [h \in Hosts |-> IF h \in down THEN Down ELSE proc[h]]
  /\ left' = [left EXCEPT !.crashes = @ - 1]
  /\ UNCHANGED <<record, mark, late, disk, image, acked, runs, moved, apart, gone, excuses, broken>>

\* An image of a disk is taken, in use or not.
TakeImage(h) ==
  /\ disk[h] # None /\ left.images > 0 /\ left.places > 0
  /\ image' = disk[h]
  /\ left' = [left EXCEPT !.images = @ - 1]
  /\ UNCHANGED <<record, mark, late, disk, proc, acked, runs, moved, apart, gone, excuses, broken>>

\* The image replaces a disk of its node, or is copied to a host without a disk. If it replaces the last complete disk, this is detected if
\* the mark was written since; otherwise it is the first of the documented windows.
Place(h) ==
  /\ ~Up(h) /\ image # None /\ left.places > 0 /\ disk[h] # image
  /\ disk[h] = None \/ disk[h].node = image.node
  /\ disk' = [disk EXCEPT ![h] = image]
  /\ left' = [left EXCEPT !.places = @ - 1]
  /\ moved' = TRUE
  /\ LET last == KeptBy(record, disk, acked) /\ ~KeptBy(record, disk', acked)
     IN /\ gone' = (gone \/ (last /\ ~InWindow(image)))
        /\ excuses' = excuses \cup (IF last /\ InWindow(image) THEN {"only copy"} ELSE {})
  /\ UNCHANGED <<record, mark, late, proc, image, acked, runs, apart, broken>>

\* A process starts. It contacts another process of its node, and does not participate if that responds. It reads the record and the mark,
\* compares both with its directory, and durably claims a generation before the record can list it.
Start(h) ==
  LET d     == disk[h]
      twins == OfNode(d.node)
      r     == runs + 1
      me    == record.inSync[d.node]
      mine  == me # Absent /\ me.inc = d.inc
      boot  == {d.run, d.claimed} \ {0}
      back  == \/ mine /\ ~Reached(d.log) /\ ~Off("MARK")
               \/ mine /\ me.run \notin boot /\ ~Off("RUN")
      s     == Process(r, IF Forgets(record, d.node) THEN {} ELSE boot, record)
  IN /\ d # None /\ ~Up(h) /\ left.starts > 0
     /\ twins = {} \/ left.apart > 0 \/ Off("ASK")
     /\ left' = [left EXCEPT !.starts = @ - 1, !.apart = IF twins = {} \/ Off("ASK") THEN @ ELSE @ - 1]
     /\ apart' = (apart \/ (twins # {} /\ ~Off("ASK")))
     /\ runs' = r
     /\ disk' = [disk EXCEPT ![h] =
          LET c == [d EXCEPT !.run = IF Forgets(record, d.node) THEN 0 ELSE IF mine /\ me.run = d.claimed THEN me.run ELSE @,
                             !.claimed = IF Off("CLAIM") THEN 0 ELSE r]
              b == IF back THEN RolledBack(c) ELSE c
          IN IF Listed(record, d.node) THEN b ELSE Cleared(b)]
     /\ proc' = [proc EXCEPT ![h] = s]
     /\ UNCHANGED <<record, mark, late, image, acked, moved, gone, excuses, broken>>

-----------------------------------------------------------------------------
(* Cluster record *)

\* A swap has an outcome immediately, or is applied later or never. The process assumes that it may be applied at any moment.
Swap(h, s, next, disks, may) ==
  LET n    == [next EXCEPT !.config = record.config + 1]
      lost == KeptBy(record, disks, acked) /\ ~KeptBy(n, disks, acked)
  IN /\ Up(h) /\ s.rec = record /\ record.config < MaxConfig
     /\ disk' = disks
     /\ proc' = [proc EXCEPT ![h] = [s EXCEPT !.pend = @ \cup {n}]]
     /\ excuses' = excuses \cup (IF lost /\ may THEN {"no node to ask"} ELSE {})
     /\ \/ record' = n /\ UNCHANGED <<late, left>>
        \/ /\ left.late > 0 /\ left' = [left EXCEPT !.late = @ - 1]
           /\ late' = late \cup {n} /\ UNCHANGED record
     /\ UNCHANGED <<mark, image, acked, runs, moved, apart, gone, broken>>

SwapLate ==
  \E n \in late :
    /\ late' = late \ {n}
    /\ record' = IF record.config + 1 = n.config THEN n ELSE record
    /\ UNCHANGED <<mark, disk, proc, image, acked, runs, left, moved, apart, gone, excuses, broken>>

\* A process reads the record, or receives it from its watch. INV-11: a process that was replaced by another generation is superseded, and
\* stops. A process that was never listed detects that its directory is a copy, or was rolled back.
Learn(h) ==
  LET s     == proc[h]
      d     == disk[h]
      me    == record.inSync[d.node]
      mine  == me # Absent /\ me.inc = d.inc
      keeps == s.role = "active" /\ record.active = d.node /\ record.term = s.term
      takes == ~keeps /\ record.active = d.node /\ mine /\ ~d.loss /\ record.term > s.floor /\ (me.run = s.run \/ Off("RUN"))
      base  == [s EXCEPT !.rec = record, !.pend = {}, !.named = @ \/ (mine /\ me.run = s.run),
                         !.boot = IF Forgets(record, d.node) THEN {} ELSE @]
      seen  == IF mine /\ me.run = s.run THEN [d EXCEPT !.run = s.run, !.claimed = 0]
               ELSE IF mine /\ Owns(s, me.run) /\ ~Off("RUN") THEN [d EXCEPT !.run = me.run, !.claimed = s.run]
               ELSE IF mine /\ ~Owns(s, me.run) THEN RolledBack(d)
               ELSE IF me = Absent THEN [Cleared(d) EXCEPT !.run = IF Forgets(record, d.node) /\ @ # s.run THEN 0 ELSE @]
               ELSE d
  IN /\ Up(h) /\ s.rec # record
     /\ IF mine /\ s.named /\ ~Owns(s, me.run)
        THEN proc' = [proc EXCEPT ![h] = Down] /\ UNCHANGED disk
        ELSE IF takes
        THEN /\ Len(d.log) < MaxLog
             /\ proc' = [proc EXCEPT ![h] = [base EXCEPT !.role = "active", !.term = record.term, !.floor = record.term, !.commit = 0,
                                                         !.peer = [run |-> 0, len |-> 0], !.ahead = FALSE]]
             /\ disk' = [disk EXCEPT ![h] = [seen EXCEPT !.log = Append(@, Entry(record.term, s.run)),
                                                         !.fence = Higher(@, FenceOf(record))]]
        ELSE /\ proc' = [proc EXCEPT ![h] =
                  IF keeps THEN base
                  ELSE [base EXCEPT !.role = "idle", !.term = 0, !.commit = 0, !.peer = [run |-> 0, len |-> 0], !.ahead = FALSE]]
             /\ disk' = [disk EXCEPT ![h] =
                  IF ~keeps /\ seen.fence.term # record.term THEN [seen EXCEPT !.fence = Higher(@, FenceOf(record))] ELSE seen]
     /\ UNCHANGED <<record, mark, late, image, acked, runs, left, moved, apart, gone, excuses, broken>>

\* INV-6: a directory that was rolled back first leaves the in-sync set.
Leave(h) ==
  LET s == proc[h] n == disk[h].node
  IN /\ Up(h) /\ s.role # "active" /\ Listed(s.rec, n) /\ ~Eligible(h) /\ Listed(s.rec, Other(n))
     /\ Swap(h, s, [s.rec EXCEPT !.inSync[n] = Absent], disk, FALSE)

\* A starting standby lists its generation before it follows.
Renew(h) ==
  LET s == proc[h] n == disk[h].node
  IN /\ Up(h) /\ s.role = "idle" /\ Eligible(h) /\ s.rec.active # n /\ s.rec.inSync[n].run # s.run /\ ~Off("RUN")
     /\ Swap(h, s, [s.rec EXCEPT !.inSync[n].run = s.run], disk, FALSE)

\* The role is transferred to the in-sync member with more entries.
Give(h, s, n) ==
  Swap(h, s, [s.rec EXCEPT !.term = @ + 1, !.active = Other(n), !.inSync[n] = Absent], disk, FALSE)

\* INV-4: an in-sync member takes over at any moment, or the active resumes its role after a start. The latter first requests the end of the
\* other member's log, if that is running (INV-13); a copy that could not contact the original is treated like a node without a peer. Both
\* read the mark again unless they were connected (INV-12).
Stand(h) ==
  LET s == proc[h]
      d == disk[h]
      n == d.node
      again == s.rec.active = n
      there == {o \in OfNode(Other(n)) : Listed(s.rec, Other(n)) /\ disk[o].inc = s.rec.inSync[Other(n)].inc}
      more  == {o \in there : \/ LastTerm(disk[o].log) > LastTerm(d.log)
                              \/ LastTerm(disk[o].log) = LastTerm(d.log) /\ Len(disk[o].log) > Len(d.log)}
      next  == [s.rec EXCEPT !.term = @ + 1, !.active = n,
                             !.inSync = [m \in Nodes |-> IF m = n THEN [inc |-> d.inc, run |-> s.run]
                                                         ELSE IF again /\ there # {} THEN @[m] ELSE Absent]]
      disks == [disk EXCEPT ![h].fence = Higher(@, [config |-> s.rec.config, term |-> s.rec.term + 1])]
      t     == [s EXCEPT !.role = "candidate", !.unasked = (there = {} \/ ~again) /\ ~s.met]
  IN /\ Up(h) /\ s.role # "active" /\ Eligible(h) /\ s.rec.term < MaxTerm
     /\ ~(again /\ s.rec.term > s.floor /\ s.rec.inSync[n].run = s.run) \* covered by Learn
     /\ s.met \/ Reached(d.log) \/ Off("MARK")
     /\ IF again /\ more # {} /\ ~Off("MEET")
        THEN Give(h, s, n)
        ELSE Swap(h, t, next, disks, moved /\ InWindow(d) /\ (IF again THEN there = {} ELSE ~s.met))

\* The mark was written after this process read it.
MarkMissed(h) ==
  /\ Up(h) /\ proc[h].role # "active" /\ Eligible(h) /\ ~proc[h].met /\ ~Reached(disk[h].log) /\ ~Off("MARK")
  /\ disk' = [disk EXCEPT ![h] = RolledBack(@)]
  /\ UNCHANGED <<record, mark, late, proc, image, acked, runs, left, moved, apart, gone, excuses, broken>>

-----------------------------------------------------------------------------
(* Replication *)

Lead(h) == Up(h) /\ proc[h].role = "active"

ClientAppends(h) ==
  /\ Lead(h) /\ Len(disk[h].log) < MaxLog
  /\ disk' = [disk EXCEPT ![h].log = Append(@, Entry(proc[h].term, proc[h].run))]
  /\ UNCHANGED <<record, mark, late, proc, image, acked, runs, left, moved, apart, gone, excuses, broken>>

\* INV-2, INV-3, INV-11: the generations whose acknowledgements are required.
Required(h) ==
  LET o == Other(disk[h].node)
  IN {r.inSync[o].run : r \in {q \in {proc[h].rec} \cup proc[h].pend : Listed(q, o)}}

\* INV-2. Entries that are acknowledged, or may be at any moment. In the window of a copy that could not contact the original, this excludes
\* entries acknowledged by the original until it reads the record, or by the original of a standby until the active reads the record.
Superseded(h) == apart /\ record.inSync[disk[h].node].run # proc[h].run
Told(by, p) == IF (\A h \in by : ~Superseded(h)) /\ Len(p) > Len(acked) THEN p ELSE acked
Forks(by, p) ==
  IF (\A h \in by : ~Superseded(h)) /\ excuses = {} /\ ~IsPrefix(p, acked) /\ ~IsPrefix(acked, p) THEN {"two histories"} ELSE {}
Window(by, p) == IF (\E h \in by : Superseded(h)) /\ ~IsPrefix(p, acked) THEN {"apart"} ELSE {}

\* A standby follows an active: the active sends unacknowledged entries, and the standby acknowledges them.
Follow(h, o) ==
  LET s == proc[h]
      d == disk[h]
      a == proc[o]
      log == disk[o].log
      f == [config |-> a.rec.config, term |-> a.term]
      c == Common(d.log, log)
      m == a.rec.inSync[d.node]
      member  == m.inc = d.inc /\ (m.run = s.run \/ (Off("RUN") /\ m # Absent))
      counts  == \A r \in Required(o) : r = s.run \/ Off("RUN")
      by == IF Required(o) = {} THEN {o} ELSE {o, h}
      commits == counts /\ ~a.ahead
      cuts    == c < Common(acked, d.log)
      seals   == {Min(d.known, c), Max(Min(d.known, c), a.commit)} \* a received commit LSN is eventually sealed into its log
  IN /\ Up(h) /\ s.role = "idle" /\ Lead(o) /\ disk[o].node # d.node /\ s.rec.active = disk[o].node
     /\ ~Listed(s.rec, d.node) \/ (Eligible(h) /\ (s.rec.inSync[d.node].run = s.run \/ Off("RUN")))
     /\ ~Below(f, d.fence)
     /\ IF c < d.known /\ ~Off("KNOWN")
        THEN \* INV-13: it rejects the truncation of known committed entries, and reports it to the active
             /\ ~a.ahead
             /\ proc' = [proc EXCEPT ![o].ahead = TRUE]
             /\ UNCHANGED <<disk, acked, excuses, broken>>
        ELSE IF member /\ c < a.commit /\ ~Off("LACKS")
        THEN \* INV-6, INV-13: it is listed in sync, but committed entries are missing
             /\ disk' = [disk EXCEPT ![h] = RolledBack(@)]
             /\ UNCHANGED <<proc, acked, excuses, broken>>
        ELSE \E k \in seals :
             /\ d.log # log \/ a.peer # [run |-> s.run, len |-> Len(log)] \/ k # d.known
             /\ proc' = [proc EXCEPT ![o].peer = [run |-> s.run, len |-> Len(log)], ![h].met = TRUE,
                                     ![o].commit = IF commits THEN Len(log) ELSE @]
             /\ disk' = [disk EXCEPT ![h] = [d EXCEPT !.log = log, !.known = k, !.fence = Higher(@, f)]]
             /\ excuses' = excuses \cup (IF cuts /\ a.unasked /\ moved THEN {"not sealed"} ELSE {})
                                   \cup (IF commits THEN Window(by, log) ELSE {})
             /\ acked' = IF commits THEN Told(by, log) ELSE acked
             /\ broken' = broken \cup (IF c < d.known THEN {"cut known"} ELSE {})
                  \cup (IF cuts /\ excuses' = {} THEN {"cut"} ELSE {})
                  \cup (IF commits THEN Forks(by, log) ELSE {})
     /\ UNCHANGED <<record, mark, late, image, runs, left, moved, apart, gone>>

Seal(h) ==
  /\ Lead(h) /\ disk[h].known < proc[h].commit
  /\ disk' = [disk EXCEPT ![h].known = proc[h].commit]
  /\ UNCHANGED <<record, mark, late, proc, image, acked, runs, left, moved, apart, gone, excuses, broken>>

\* Without a standby, local durability suffices for a commit.
ActsAlone(h) == Lead(h) /\ ~proc[h].ahead /\ Required(h) = {}
Commit(h) ==
  LET log == disk[h].log
  IN /\ ActsAlone(h) /\ proc[h].commit < Len(log)
     /\ proc' = [proc EXCEPT ![h].commit = Len(log)]
     /\ acked' = Told({h}, log)
     /\ excuses' = excuses \cup Window({h}, log)
     /\ broken' = broken \cup Forks({h}, log)
     /\ UNCHANGED <<record, mark, late, disk, image, runs, left, moved, apart, gone>>

\* About once a second (INV-12).
WriteMark(h) ==
  LET s == proc[h] m == [by |-> s.term, term |-> disk[h].log[s.commit].term, len |-> s.commit]
  IN /\ Lead(h) /\ s.commit > 0 /\ left.places > 0
     /\ mark.by < m.by \/ (mark.by = m.by /\ mark.len < m.len)
     /\ mark' = m
     /\ UNCHANGED <<record, late, disk, proc, image, acked, runs, left, moved, apart, gone, excuses, broken>>

-----------------------------------------------------------------------------
(* Changes of inSync by the active (INV-3) *)

Drop(h) ==
  LET s == proc[h] n == disk[h].node
  IN /\ Lead(h) /\ ~s.ahead /\ Listed(s.rec, n) /\ Listed(s.rec, Other(n))
     /\ Swap(h, s, [s.rec EXCEPT !.inSync[Other(n)] = Absent], disk, FALSE)

Add(h) ==
  LET s == proc[h] n == disk[h].node
  IN /\ Lead(h) /\ ~s.ahead /\ Listed(s.rec, n) /\ ~Listed(s.rec, Other(n)) /\ s.peer.len > 0 /\ s.peer.len >= s.commit
     /\ \E o \in OfNode(Other(n)) :
          /\ proc[o].run = s.peer.run
          /\ Swap(h, s, [s.rec EXCEPT !.inSync[Other(n)] = [inc |-> disk[o].inc, run |-> s.peer.run]], disk, FALSE)

\* INV-13: nothing was acknowledged in this term without the member with more entries. (If that is no longer in sync, the active only stops.)
GiveBack(h) ==
  LET s == proc[h] n == disk[h].node
  IN /\ Lead(h) /\ s.ahead /\ Listed(s.rec, n) /\ Listed(s.rec, Other(n)) /\ s.rec.term < MaxTerm
     /\ Give(h, s, n)

-----------------------------------------------------------------------------

Next ==
  \/ SwapLate
  \/ \E down \in SUBSET Hosts : Crash(down)
  \/ \E h \in Hosts :
       \/ TakeImage(h) \/ Place(h) \/ Start(h)
       \/ Learn(h) \/ Leave(h) \/ Renew(h) \/ Stand(h) \/ MarkMissed(h)
       \/ ClientAppends(h) \/ Seal(h) \/ Commit(h) \/ WriteMark(h)
       \/ Drop(h) \/ Add(h) \/ GiveBack(h)
       \/ \E o \in Hosts \ {h} : Follow(h, o)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Properties *)

\* No acknowledged entry is lost, except in the documented windows: a disk listed in the record has all of them. If the only such disk was
\* replaced by an image that the mark distinguishes from it, OneHistory requires that no node continues without them.
Kept == excuses # {} \/ gone \/ KeptBy(record, disk, acked)

\* No two different histories are acknowledged.
OneHistory == "two histories" \notin broken

\* INV-13: known committed entries are never truncated, and acknowledged ones only in the documented windows.
NothingCommittedIsCut == "cut known" \notin broken /\ "cut" \notin broken

\* INV-11: at most one process acknowledges without a standby, except the original of a copy until it reads the record.
OneActsAlone ==
  LET alone == {h \in Hosts : ActsAlone(h)}
  IN /\ Cardinality({h \in alone : Current(h)}) <= 1
     /\ apart \/ Cardinality(alone) <= 1

=============================================================================
