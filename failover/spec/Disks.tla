------------------------------- MODULE Disks -------------------------------
(***************************************************************************)
(* What keeps a pair safe when a data directory is neither unique nor      *)
(* always the newest (docs/decisions/0010): a disk is a thing of its own,  *)
(* apart from the process that runs on it. An image of it may be taken at  *)
(* any moment, put back over the disk of the same node while that is down, *)
(* or started on another host, beside the original. The rules are those of *)
(* INV-11 (runs), INV-12 (the mark) and INV-13 (what is known to be        *)
(* committed is not cut); each of them can be switched off by `Broken`.    *)
(* Lockstep.tla has the rest: late messages, forced failovers, pauses. To  *)
(* keep this one small a message and its effect are one step here.         *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Hosts,      \* h1 and h2 are the pair's; a third is for a copy beside them
  MaxConfig,  \* bounds of the exploration
  MaxTerm,
  MaxLog,
  MaxCrashes,
  MaxStarts,
  MaxImages,
  MaxPlaces,  \* how often an image becomes the disk of a host
  MaxLate,    \* swaps whose outcome is not known at once
  MaxApart,   \* copies that are started while the original runs and cannot be asked
  Broken      \* names of rules that are switched off

VARIABLES
  record,     \* the pair's record: config, term, active, inSync
  mark,       \* the pair's high-water mark (INV-12)
  late,       \* swaps under way: each may be done at any time, or never
  disk,       \* of each host; None if it has none
  proc,       \* of each host; Down if none runs
  image,      \* an image that was taken; None if there is none
  acked,      \* the longest history that a client was told of
  runs,       \* the number of runs so far; a run's number is its generation
  left,       \* what may still happen of what is bounded
  moved,      \* TRUE when an image has become a disk
  apart,      \* TRUE when a copy was started that could not ask the original
  gone,       \* TRUE when the only disk with all that was acknowledged was overwritten by an image that the mark tells from it
  excuses,    \* the documented windows in which something acknowledged may be lost, as they were met
  broken      \* what was seen to happen and must not

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
\* How many entries two logs have in common.
Common(s, t) ==
  CHOOSE k \in 0..Min(Len(s), Len(t)) :
    /\ SubSeq(s, 1, k) = SubSeq(t, 1, k)
    /\ k = Min(Len(s), Len(t)) \/ s[k + 1] # t[k + 1]

\* An entry is its term and the run that wrote it: two runs that act in one term are seen to differ.
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
   term |-> 0,                    \* in which it is active
   floor |-> rec.term,            \* terms up to this one may have been used by this node before
   commit |-> 0,
   peer |-> [run |-> 0, len |-> 0], \* the standby that has acknowledged, and how much
   pend |-> {},                   \* own swaps that may have been done, or may yet be
   named |-> FALSE,               \* the record has named this run
   ahead |-> FALSE,               \* a standby knows commits that this active lacks
   met |-> FALSE,                 \* it has been connected to its active since its start
   unasked |-> FALSE]             \* it took the role without an answer from the other node

\* An image of one of the two disks was taken before the last thing that was acknowledged; more may be taken. The standby is in sync or not,
\* and what was acknowledged last is sealed in the logs and told to the coordinator, or not.
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
(* Who is named, and who has what. *)

\* The record's entry names this disk's store, and one of the two generations on it.
Names(r, d) ==
  /\ d # None /\ Listed(r, d.node) /\ ~d.loss
  /\ r.inSync[d.node].inc = d.inc
  /\ r.inSync[d.node].run \in {d.run, d.claimed} \/ Off("RUN")

\* Neither the runs nor the mark can tell an image from the disk that it was taken of.
InWindow(d) == Reached(d.log) /\ record.inSync[d.node].run \in {d.run, d.claimed}

\* A disk that the record names holds all that was acknowledged.
KeptBy(r, disks, a) == \E h \in Hosts : Names(r, disks[h]) /\ IsPrefix(a, disks[h].log)

\* INV-11: the generation in the entry is this run's, or one that the directory held at the start; those count no more once the run has
\* read a record that does not list its node.
Owns(s, run) == run = s.run \/ run \in s.boot \/ Off("RUN")
Forgets(r, n) == ~Listed(r, n) /\ ~Off("FORGET")

\* INV-4, INV-6, INV-11.
Eligible(h) ==
  LET s == proc[h] d == disk[h] m == s.rec.inSync[d.node]
  IN m # Absent /\ m.inc = d.inc /\ Owns(s, m.run) /\ ~d.loss

\* A directory that was found to be an older image or a copy: it counts as one that has lost (INV-6).
PutBack(d) == [d EXCEPT !.loss = TRUE]
\* When the record does not name it any more, nothing that still trusts it may match it again.
Cleared(d) == IF d.loss THEN [d EXCEPT !.loss = FALSE, !.inc = @ + 1] ELSE d

Up(h) == proc[h].up
OfNode(n) == {h \in Hosts : disk[h] # None /\ disk[h].node = n /\ Up(h)}
Current(h) == Up(h) /\ proc[h].rec = record

-----------------------------------------------------------------------------
(* What happens to disks. *)

\* One machine, or a whole site.
Crash(down) ==
  /\ down # {} /\ left.crashes > 0 /\ \A h \in down : Up(h)
  /\ proc' = [h \in Hosts |-> IF h \in down THEN Down ELSE proc[h]]
  /\ left' = [left EXCEPT !.crashes = @ - 1]
  /\ UNCHANGED <<record, mark, late, disk, image, acked, runs, moved, apart, gone, excuses, broken>>

\* Taken of a disk in use or at rest.
TakeImage(h) ==
  /\ disk[h] # None /\ left.images > 0 /\ left.places > 0
  /\ image' = disk[h]
  /\ left' = [left EXCEPT !.images = @ - 1]
  /\ UNCHANGED <<record, mark, late, disk, proc, acked, runs, moved, apart, gone, excuses, broken>>

\* The image is put back over a disk of its node, or into a host that has none. Of the last disk with all that was acknowledged there is
\* nothing left then. If the mark was written since, that is noticed; if not, it is the first of the documented windows.
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

\* A process starts: it asks for another one of its node, and takes no part if that answers; it reads the record and the mark; it compares
\* both with its directory; and it claims a generation, durably, before the record can name it.
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
              b == IF back THEN PutBack(c) ELSE c
          IN IF Listed(record, d.node) THEN b ELSE Cleared(b)]
     /\ proc' = [proc EXCEPT ![h] = s]
     /\ UNCHANGED <<record, mark, late, image, acked, moved, gone, excuses, broken>>

-----------------------------------------------------------------------------
(* The record. *)

\* Of a swap either the outcome is learned soon, or it is done late or never. The process goes on as if it may be done at any moment.
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

\* It reads the record, or its watch delivers it. INV-11: one whose place another run has taken is superseded, and takes no part any more;
\* one that was never named finds that it is a copy, or was put back.
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
               ELSE IF mine /\ ~Owns(s, me.run) THEN PutBack(d)
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

\* INV-6: a directory that was put back leaves the in-sync set before it does anything else.
Leave(h) ==
  LET s == proc[h] n == disk[h].node
  IN /\ Up(h) /\ s.role # "active" /\ Listed(s.rec, n) /\ ~Eligible(h) /\ Listed(s.rec, Other(n))
     /\ Swap(h, s, [s.rec EXCEPT !.inSync[n] = Absent], disk, FALSE)

\* A standby that has started names its run before it follows.
Renew(h) ==
  LET s == proc[h] n == disk[h].node
  IN /\ Up(h) /\ s.role = "idle" /\ Eligible(h) /\ s.rec.active # n /\ s.rec.inSync[n].run # s.run /\ ~Off("RUN")
     /\ Swap(h, s, [s.rec EXCEPT !.inSync[n].run = s.run], disk, FALSE)

\* The role is given to the member in sync that has more.
Give(h, s, n) ==
  Swap(h, s, [s.rec EXCEPT !.term = @ + 1, !.active = Other(n), !.inSync[n] = Absent], disk, FALSE)

\* INV-4: a member in sync takes over, at any moment; or the active goes on after a start. That one asks the other member first, if it runs,
\* for the end of its log (INV-13); a copy that could not ask the original counts as one that has no node to ask, whichever it has
\* met. Both read the mark once more unless they were connected (INV-12).
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
     /\ ~(again /\ s.rec.term > s.floor /\ s.rec.inSync[n].run = s.run) \* that is Learn's
     /\ s.met \/ Reached(d.log) \/ Off("MARK")
     /\ IF again /\ more # {} /\ ~Off("MEET")
        THEN Give(h, s, n)
        ELSE Swap(h, t, next, disks, moved /\ InWindow(d) /\ (IF again THEN there = {} ELSE ~s.met))

\* The mark was written since this process has read it.
MarkMissed(h) ==
  /\ Up(h) /\ proc[h].role # "active" /\ Eligible(h) /\ ~proc[h].met /\ ~Reached(disk[h].log) /\ ~Off("MARK")
  /\ disk' = [disk EXCEPT ![h] = PutBack(@)]
  /\ UNCHANGED <<record, mark, late, proc, image, acked, runs, left, moved, apart, gone, excuses, broken>>

-----------------------------------------------------------------------------
(* Replication. *)

Lead(h) == Up(h) /\ proc[h].role = "active"

ClientAppends(h) ==
  /\ Lead(h) /\ Len(disk[h].log) < MaxLog
  /\ disk' = [disk EXCEPT ![h].log = Append(@, Entry(proc[h].term, proc[h].run))]
  /\ UNCHANGED <<record, mark, late, proc, image, acked, runs, left, moved, apart, gone, excuses, broken>>

\* INV-2, INV-3, INV-11: the runs whose acknowledgements are required.
Required(h) ==
  LET o == Other(disk[h].node)
  IN {r.inSync[o].run : r \in {q \in {proc[h].rec} \cup proc[h].pend : Listed(q, o)}}

\* INV-2. What clients are told of, or may be at any moment. In the window of a copy that could not ask the original, what the original
\* acknowledges until it sees the record does not count; nor does what the original of a standby acknowledges until the active sees it.
Superseded(h) == apart /\ record.inSync[disk[h].node].run # proc[h].run
Told(by, p) == IF (\A h \in by : ~Superseded(h)) /\ Len(p) > Len(acked) THEN p ELSE acked
Forks(by, p) ==
  IF (\A h \in by : ~Superseded(h)) /\ excuses = {} /\ ~IsPrefix(p, acked) /\ ~IsPrefix(acked, p) THEN {"two histories"} ELSE {}
Window(by, p) == IF (\E h \in by : Superseded(h)) /\ ~IsPrefix(p, acked) THEN {"apart"} ELSE {}

\* A standby follows an active: what the active has not yet got an acknowledgement of goes there, and the acknowledgement comes back.
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
      seals   == {Min(d.known, c), Max(Min(d.known, c), a.commit)} \* what it hears of commits is sealed into its log sooner or later
  IN /\ Up(h) /\ s.role = "idle" /\ Lead(o) /\ disk[o].node # d.node /\ s.rec.active = disk[o].node
     /\ ~Listed(s.rec, d.node) \/ (Eligible(h) /\ (s.rec.inSync[d.node].run = s.run \/ Off("RUN")))
     /\ ~Below(f, d.fence)
     /\ IF c < d.known /\ ~Off("KNOWN")
        THEN \* INV-13: it lets no node cut what it knows to be committed; the active hears of it.
             /\ ~a.ahead
             /\ proc' = [proc EXCEPT ![o].ahead = TRUE]
             /\ UNCHANGED <<disk, acked, excuses, broken>>
        ELSE IF member /\ c < a.commit /\ ~Off("LACKS")
        THEN \* INV-6, INV-13: it is named in sync, and lacks what was committed.
             /\ disk' = [disk EXCEPT ![h] = PutBack(@)]
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

\* Alone it commits what is durable on its own disk.
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
(* Changes of inSync by the active (INV-3). *)

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

\* INV-13: nothing was acknowledged in its term without the member that has more. (If that is not in sync any more, it only stops.)
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
(* What must hold. *)

\* No acknowledged record is lost, except in the documented windows: a disk that the record names holds everything. When the only such disk
\* was overwritten by an image that the mark tells from it, nothing can hold it; then OneHistory says that no node goes on without it.
Kept == excuses # {} \/ gone \/ KeptBy(record, disk, acked)

\* Clients are never told of two histories.
OneHistory == "two histories" \notin broken

\* INV-13: what a node knows to be committed is never cut, in no window; nor is anything else that a client was told of, outside of them.
NothingCommittedIsCut == "cut known" \notin broken /\ "cut" \notin broken

\* INV-11: of all processes at most one acknowledges without a standby, but for a copy's original that has not seen the record yet.
OneActsAlone ==
  LET alone == {h \in Hosts : ActsAlone(h)}
  IN /\ Cardinality({h \in alone : Current(h)}) <= 1
     /\ apart \/ Cardinality(alone) <= 1

=============================================================================
