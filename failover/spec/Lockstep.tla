------------------------------ MODULE Lockstep ------------------------------
(***************************************************************************)
(* The safety of a pair: a record in a coordinator, written by             *)
(* compare-and-swap; two nodes with logs; replication, promotion, fencing, *)
(* swaps with an unknown outcome, crashes, and lost, duplicate or late     *)
(* messages. Names follow package failover; INV-n is the invariant in its  *)
(* documentation. README.md lists the omissions.                           *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Nodes,      \* the two nodes
  First,      \* the initial active
  MaxConfig,  \* bounds of the exploration
  MaxTerm,
  MaxLog,
  MaxCrashes,
  MaxMessages, \* maximum number of appends, and of acks, in flight
  MaxSwaps,    \* maximum number of swaps in flight
  MaxOperator, \* maximum number of pauses, resumes and forced failovers
  Broken       \* names of disabled invariants, for mutation

None == [config |-> 0]   \* no record

VARIABLES
  record,     \* the record in the coordinator
  swaps,      \* swaps in flight: each may be applied late, or never
  appends,    \* messages from an active to its standby
  acks,       \* messages from a standby to its active
  node,       \* the state of each node
  committed,  \* the longest acknowledged history
  forked,     \* TRUE when two different histories were acknowledged
  crashes,
  operator    \* number of operator actions so far

vars == <<record, swaps, appends, acks, node, committed, forked, crashes, operator>>

Other(n) == CHOOSE o \in Nodes : o # n
Max(a, b) == IF a >= b THEN a ELSE b
Off(name) == name \in Broken

\* Fences are ordered by config, then by term (Fence.Less).
Below(f, g) == f.config < g.config \/ (f.config = g.config /\ f.term < g.term)
Higher(f, g) == IF Below(f, g) THEN g ELSE f

\* The length of the longest common prefix of two logs.
Common(s, t) ==
  LET n == CHOOSE k \in 0..Len(s) :
             /\ k <= Len(t) /\ SubSeq(s, 1, k) = SubSeq(t, 1, k)
             /\ \A i \in (k + 1)..Len(s) : i > Len(t) \/ SubSeq(s, 1, i) # SubSeq(t, 1, i)
  IN SubSeq(s, 1, n)

IsPrefix(s, t) == Len(s) <= Len(t) /\ SubSeq(t, 1, Len(s)) = s

\* A log entry consists of the term in which it was written, and its content; "start" begins a term.
Entry(t, what) == [term |-> t, what |-> what]

FirstRecord ==
  [config |-> 1, term |-> 1, active |-> First, inSync |-> Nodes, op |-> <<First, 0, 0>>,
   paused |-> FALSE,  \* no standby takes over
   forced |-> 0]      \* term of the last forced failover

Fresh(n) ==
  [log     |-> <<Entry(1, "start")>>,          \* durable
   fence   |-> [config |-> 1, term |-> 1],     \* durable
   role    |-> IF n = First THEN "active" ELSE "idle",
   known   |-> FirstRecord,  \* last record read by this process
   pending |-> {},           \* own swaps that may have been applied, or may still be
   unknown |-> FALSE,        \* INV-8
   term    |-> IF n = First THEN 1 ELSE 0,     \* term in which it is active
   boot    |-> IF n = First THEN 0 ELSE 1,     \* term of the first record read
   used    |-> IF n = First THEN 1 ELSE 0,     \* last term in which it was active
   acked   |-> IF n = First THEN 1 ELSE 0,     \* number of its entries acknowledged by the standby
   require |-> FALSE,        \* acks of a standby that is catching up are required
   commit  |-> IF n = First THEN 1 ELSE 0,
   drain   |-> FALSE]

Init ==
  /\ record = FirstRecord
  /\ swaps = {} /\ appends = {} /\ acks = {}
  /\ node = [n \in Nodes |-> Fresh(n)]
  /\ committed = <<Entry(1, "start")>>
  /\ forked = FALSE
  /\ crashes = 0
  /\ operator = 0

Knows(n) == node[n].known # None

\* INV-2, INV-3: acks of the other node are required while it is in sync, while a swap that lists it may be applied, and
\* before such a swap is proposed.
Required(n) ==
  LET s == node[n]
      o == Other(n)
  IN /\ ~(Off("INV3") /\ \E p \in s.pending : o \notin p.inSync)
     /\ \/ o \in s.known.inSync
        \/ \E p \in s.pending : o \in p.inSync
        \/ s.require

-----------------------------------------------------------------------------
(* Coordinator *)

SwapDone ==
  \E w \in swaps :
    /\ record.config = w.expect
    /\ record' = w.next
    /\ swaps' = swaps \ {w}
    \* Only a forced failover discards entries that only the other node has acknowledged.
    /\ committed' = IF w.next.forced > record.forced THEN Common(committed, node[w.next.active].log) ELSE committed
    /\ UNCHANGED <<appends, acks, node, forked, crashes, operator>>

SwapLost ==
  \E w \in swaps :
    /\ swaps' = swaps \ {w}
    /\ UNCHANGED <<record, appends, acks, node, committed, forked, crashes, operator>>

\* A repeated proposal keeps its op, so either of the two may be applied.
Same(p, q) == p.config = q.config /\ p.term = q.term /\ p.active = q.active /\ p.inSync = q.inSync /\ p.forced = q.forced

ProposeForced(n, s, term, active, inSync, forced) ==
  LET plain == [config |-> s.known.config + 1, term |-> term, active |-> active, inSync |-> inSync,
                op |-> <<n, crashes, Cardinality(s.pending)>>, paused |-> s.known.paused, forced |-> forced]
      again == {p \in s.pending : Same(p, plain)}
      next  == IF again # {} THEN CHOOSE p \in again : TRUE ELSE plain
  IN /\ s.known.config < MaxConfig
     /\ Cardinality(swaps) < MaxSwaps
     /\ ~s.unknown
     /\ node' = [node EXCEPT ![n] = [s EXCEPT !.pending = @ \cup {next}]]
     /\ swaps' = swaps \cup {[expect |-> s.known.config, next |-> next]}
     /\ UNCHANGED <<record, appends, acks, committed, forked, crashes>>

Propose(n, s, term, active, inSync) ==
  /\ ProposeForced(n, s, term, active, inSync, s.known.forced)
  /\ UNCHANGED operator

\* No response was received: the swap may have been applied, may be applied later, or never (INV-8).
Timeout(n) ==
  /\ Knows(n) /\ node[n].pending # {} /\ ~node[n].unknown
  /\ node' = [node EXCEPT ![n] =
       IF Off("INV8") THEN [@ EXCEPT !.pending = {}] ELSE [@ EXCEPT !.unknown = TRUE]]
  /\ UNCHANGED <<record, swaps, appends, acks, committed, forked, crashes, operator>>

-----------------------------------------------------------------------------
(* A node reads the record, or receives it from its watch *)

\* A node's role ends when the record has another active or another term.
Seen(n) ==
  LET s     == node[n]
      newer == s.known = None \/ record.config > s.known.config
      keeps == s.role = "active" /\ record.active = n /\ record.term = s.term
      base  == [s EXCEPT !.known = record, !.unknown = FALSE,
                         !.boot = IF s.known = None THEN record.term ELSE @,
                         !.pending = IF newer THEN {} ELSE @]
  IN IF keeps
     THEN [base EXCEPT
             !.fence = Higher(s.fence, [config |-> record.config, term |-> record.term]),
             !.drain = IF newer THEN FALSE ELSE @,
             !.require = IF Other(n) \in s.known.inSync /\ Other(n) \notin record.inSync THEN FALSE ELSE @,
             !.acked = IF Other(n) \in s.known.inSync /\ Other(n) \notin record.inSync THEN 0 ELSE @]
     ELSE [base EXCEPT
             !.role = IF s.role = "active" \/ newer THEN "idle" ELSE @,
             !.term = 0, !.acked = 0, !.require = FALSE, !.commit = 0, !.drain = FALSE]

\* The record gives the role to this node, in a term that it has not used. A term is never used twice.
Mine(n, s) ==
  /\ s.role # "active" /\ record.active = n
  /\ record.term > s.boot /\ record.term > s.used

Learn(n) ==
  LET s == Seen(n)
  IN /\ \/ ~Knows(n) \/ record # node[n].known \/ node[n].unknown
     /\ ~Mine(n, s)
     /\ node' = [node EXCEPT ![n] = s]
     /\ UNCHANGED <<record, swaps, appends, acks, committed, forked, crashes, operator>>

\* The node becomes active: the log continues in the new term, with a term-start record.
TakeUp(n) ==
  LET s == Seen(n)
  IN /\ \/ ~Knows(n) \/ record # node[n].known \/ node[n].unknown
     /\ Mine(n, s)
     /\ Len(s.log) < MaxLog
     /\ node' = [node EXCEPT ![n] =
          [s EXCEPT !.role = "active", !.term = record.term, !.used = record.term,
                    !.log = Append(@, Entry(record.term, "start")),
                    !.fence = Higher(@, [config |-> record.config, term |-> record.term])]]
     /\ UNCHANGED <<record, swaps, appends, acks, committed, forked, crashes, operator>>

\* INV-4: only a member of inSync, and the fence is durable before the swap.
Stand(n) ==
  LET s == node[n]
  IN /\ Knows(n) /\ s.role # "active"
     /\ n \in s.known.inSync \/ Off("INV4")
     /\ ~s.known.paused \/ s.known.active = n \/ Off("PAUSE")
     /\ s.known.term < MaxTerm
     /\ ~(s.known.active = n /\ s.known.term > s.boot /\ s.known.term > s.used)
     /\ \E members \in {{n}} \cup (IF s.known.active = n /\ Other(n) \in s.known.inSync THEN {Nodes} ELSE {}) :
          Propose(n, [s EXCEPT !.role = "candidate",
                               !.fence = Higher(@, [config |-> s.known.config, term |-> s.known.term + 1])],
                  s.known.term + 1, n, members)

-----------------------------------------------------------------------------
(* Operator actions *)

\* Pause or resume the pair, by a write of the record.
Pause ==
  /\ operator < MaxOperator /\ record.config < MaxConfig
  /\ operator' = operator + 1
  /\ record' = [record EXCEPT !.config = @ + 1, !.paused = ~@, !.op = <<"operator", operator, 0>>]
  /\ UNCHANGED <<swaps, appends, acks, node, committed, forked, crashes>>

\* Force a failover: a node that is not in sync takes over. All rules apply except membership (INV-4). The operator has ensured that the
\* other node does not act.
Force(n) ==
  LET s == node[n]
  IN /\ operator < MaxOperator /\ operator' = operator + 1
     /\ Knows(n) /\ s.role # "active" /\ n \notin s.known.inSync /\ s.known.term < MaxTerm
     /\ node[Other(n)].role # "active" \/ Off("FORCE")
     /\ ProposeForced(n, [s EXCEPT !.role = "candidate",
                                   !.fence = Higher(@, [config |-> s.known.config, term |-> s.known.term + 1])],
                      s.known.term + 1, n, {n}, s.known.term + 1)

-----------------------------------------------------------------------------
(* Replication *)

ClientAppends(n) ==
  LET s == node[n]
  IN /\ s.role = "active" /\ ~s.drain /\ Len(s.log) < MaxLog
     /\ node' = [node EXCEPT ![n].log = Append(@, Entry(s.term, n))]
     /\ UNCHANGED <<record, swaps, appends, acks, committed, forked, crashes, operator>>

\* A message contains the whole log: only the end of the common prefix matters.
Send(n) ==
  LET s == node[n]
      m == [from |-> n, config |-> s.known.config, term |-> s.term, log |-> s.log]
  IN /\ s.role = "active" /\ m \notin appends /\ Cardinality(appends) < MaxMessages
     /\ appends' = appends \cup {m}
     /\ UNCHANGED <<record, swaps, acks, node, committed, forked, crashes, operator>>

\* INV-1: messages below the fence are rejected, and a higher fence is persisted first. Messages stay, and may be received twice.
Receive(n) ==
  \E m \in appends :
    LET s == node[n]
        f == [config |-> m.config, term |-> m.term]
        a == [to |-> m.from, term |-> m.term, length |-> Len(m.log)]
    IN /\ Knows(n) /\ s.role = "idle"
       /\ m.from = Other(n) /\ s.known.active = m.from
       /\ ~Below(f, s.fence) \/ Off("INV1")
       /\ node' = [node EXCEPT ![n] =
            [s EXCEPT !.fence = Higher(@, f), !.log = IF IsPrefix(m.log, @) THEN @ ELSE m.log]]
       /\ acks' = IF Cardinality(acks) < MaxMessages THEN acks \cup {a} ELSE acks
       /\ UNCHANGED <<record, swaps, appends, committed, forked, crashes, operator>>

ReceiveAck(n) ==
  \E a \in acks :
    /\ node[n].role = "active" /\ a.to = n /\ a.term = node[n].term /\ a.length > node[n].acked
    /\ node' = [node EXCEPT ![n].acked = a.length]
    /\ UNCHANGED <<record, swaps, appends, acks, committed, forked, crashes, operator>>

MessageLost ==
  \/ \E m \in appends : appends' = appends \ {m}
       /\ UNCHANGED <<record, swaps, acks, node, committed, forked, crashes, operator>>
  \/ \E a \in acks : acks' = acks \ {a}
       /\ UNCHANGED <<record, swaps, appends, node, committed, forked, crashes, operator>>

\* INV-2, INV-8. Entries of an older term are acknowledged with the first entry of this term.
Commit(n) ==
  LET s == node[n]
      i == s.commit + 1
      h == SubSeq(s.log, 1, i)
  IN /\ s.role = "active" /\ ~s.unknown /\ i <= Len(s.log)
     /\ ~Required(n) \/ s.acked >= i \/ Off("INV2")
     /\ node' = [node EXCEPT ![n].commit = i]
     /\ IF s.log[i].term = s.term
        THEN /\ committed' = IF Len(h) > Len(committed) THEN h ELSE committed
             /\ forked' = (forked \/ ~(IsPrefix(h, committed) \/ IsPrefix(committed, h)))
        ELSE UNCHANGED <<committed, forked>>
     /\ UNCHANGED <<record, swaps, appends, acks, crashes, operator>>

-----------------------------------------------------------------------------
(* Changes of inSync (INV-3), and planned switchovers *)

Lead(n) == node[n].role = "active" /\ Knows(n)

Drop(n) ==
  /\ Lead(n) /\ ~node[n].drain /\ Other(n) \in node[n].known.inSync
  /\ Propose(n, node[n], node[n].known.term, n, {n})

Named(n) == \E p \in node[n].pending : Other(n) \in p.inSync

Require(n) ==
  /\ Lead(n) /\ Other(n) \notin node[n].known.inSync
  /\ \/ /\ ~node[n].require
        /\ node' = [node EXCEPT ![n].require = TRUE]
     \/ /\ node[n].require /\ ~Named(n) \* the standby is lost before the swap
        /\ node' = [node EXCEPT ![n].require = FALSE, ![n].acked = 0]
  /\ UNCHANGED <<record, swaps, appends, acks, committed, forked, crashes, operator>>

Add(n) ==
  LET s == node[n]
  IN /\ Lead(n) /\ Other(n) \notin s.known.inSync
     /\ (s.require /\ s.acked >= s.commit) \/ Off("INV3")
     /\ s.acked > 0
     /\ Propose(n, s, s.known.term, n, Nodes)

\* A swap that lists an absent standby may still be applied. Writing the record again resolves it.
Settle(n) ==
  /\ Lead(n) /\ Other(n) \notin node[n].known.inSync /\ Named(n)
  /\ Propose(n, node[n], node[n].known.term, n, {n})

Drain(n) ==
  /\ Lead(n) /\ Other(n) \in node[n].known.inSync
  /\ node' = [node EXCEPT ![n].drain = ~@]
  /\ UNCHANGED <<record, swaps, appends, acks, committed, forked, crashes, operator>>

HandOver(n) ==
  LET s == node[n]
  IN /\ Lead(n) /\ s.drain /\ Other(n) \in s.known.inSync
     /\ s.commit = Len(s.log) /\ s.acked >= Len(s.log) /\ s.known.term < MaxTerm
     /\ Propose(n, s, s.known.term + 1, Other(n), Nodes)

\* The log and the fence are durable; all other state is lost.
Crash(n) ==
  /\ crashes < MaxCrashes
  /\ crashes' = crashes + 1
  /\ node' = [node EXCEPT ![n] =
       [@ EXCEPT !.role = "idle", !.known = None, !.pending = {}, !.unknown = FALSE, !.term = 0, !.boot = 0,
                 !.used = 0, !.acked = 0, !.require = FALSE, !.commit = 0, !.drain = FALSE]]
  /\ UNCHANGED <<record, swaps, appends, acks, committed, forked, operator>>

-----------------------------------------------------------------------------

Next ==
  \/ SwapDone \/ SwapLost \/ MessageLost \/ Pause
  \/ \E n \in Nodes :
       \/ Timeout(n) \/ Learn(n) \/ TakeUp(n) \/ Stand(n)
       \/ ClientAppends(n) \/ Send(n) \/ Receive(n) \/ ReceiveAck(n) \/ Commit(n)
       \/ Drop(n) \/ Require(n) \/ Add(n) \/ Settle(n) \/ Drain(n) \/ HandOver(n)
       \/ Crash(n) \/ Force(n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Properties *)

\* INV-2, INV-3: every in-sync node has all acknowledged entries.
InSyncIsComplete == \A n \in record.inSync : IsPrefix(committed, node[n].log)

\* INV-4: the active of the record's term has all acknowledged entries.
ActiveIsComplete ==
  LET n == record.active
  IN node[n].role = "active" /\ node[n].term = record.term => IsPrefix(committed, node[n].log)

\* A term permanently has one active: (term, position) identifies an entry.
OneActivePerTerm ==
  \A n, m \in Nodes :
    n # m /\ node[n].role = "active" /\ node[m].role = "active" => node[n].term # node[m].term

LogsAgree ==
  \A n, m \in Nodes : \A i \in 1..Len(node[n].log) :
    i <= Len(node[m].log) /\ node[n].log[i].term = node[m].log[i].term
      => SubSeq(node[n].log, 1, i) = SubSeq(node[m].log, 1, i)

\* INV-8, and all other invariants: no two different histories are acknowledged.
OneHistory == ~forked

\* INV-1, INV-9: fences and the record never decrease.
NeverBack ==
  [][/\ record'.config >= record.config
     /\ \A n \in Nodes : ~Below(node'[n].fence, node[n].fence)]_vars

\* Acknowledged entries are only lost by a forced failover.
OnlyForceLoses == [][IsPrefix(committed, committed') \/ record'.forced > record.forced]_vars

\* In a paused pair, the role moves only by a handover or a forced failover.
PausedKeepsTheRole ==
  [][record.paused /\ record'.active # record.active => record'.op[1] = record.active \/ record'.forced > record.forced]_vars

=============================================================================
