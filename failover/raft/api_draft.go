package raftcoord

import (
	"context"
	"errors"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
)

var errDraft = errors.New("raft: being written")

// Voter is one of the three.
type Voter struct{}

// Start starts a voter: it listens, and joins or forms the cluster in the background. Errors are about the options, the
// directory and the port only.
func Start(o Options) (*Voter, error) { return nil, errDraft }

// ID of the voter.
func (v *Voter) ID() string { return "" }

// Status tells what the voter knows.
func (v *Voter) Status() Status { return Status{} }

// Connect makes a coordinator that uses this voter. Close it before the voter.
func (v *Voter) Connect() *Coordinator { return nil }

// Close stops the voter and waits until it has stopped.
func (v *Voter) Close() error { return nil }

// Coordinator implements failover.Coordinator on the voters.
type Coordinator struct{ failover.Coordinator }

// Open starts a voter and connects to it; Close of the coordinator closes both.
func Open(o Options) (*Coordinator, error) { return nil, errDraft }

// Voter that this coordinator uses.
func (c *Coordinator) Voter() *Voter { return nil }

// Ping waits until the voters answer with a quorum; nil whether or not there is a record.
func (c *Coordinator) Ping(ctx context.Context) error { return errDraft }

// RunWitness runs a voter without a data plane until ctx ends. `ready`, if not nil, is called once when it listens.
func RunWitness(ctx context.Context, o Options, ready func(*Voter)) error { return errDraft }

// Admin looks at and changes the members of a cluster from outside. It is no voter.
type Admin struct{}

// AdminOptions of NewAdmin.
type AdminOptions struct {
	// Voters are addresses to find the cluster by; one that answers is enough.
	Voters []string
	// TLS as the voters have it; nil: none.
	TLS *TLS
	// RequestTimeout of one try of a request. Default 1 s.
	RequestTimeout time.Duration
}

// NewAdmin prepares the connections; it does not wait for anybody.
func NewAdmin(o AdminOptions) (*Admin, error) { return nil, errDraft }

// Members asks the leader.
func (a *Admin) Members(ctx context.Context) ([]Member, error) { return nil, errDraft }

// Add makes the voter that listens on this address a member. Its directory must be empty; its id is asked from it.
func (a *Admin) Add(ctx context.Context, address string) (Member, error) { return Member{}, errDraft }

// Remove takes a member (by id or address) out of the cluster.
func (a *Admin) Remove(ctx context.Context, idOrAddress string) error { return errDraft }

// Replace takes a member (by id or address) out and makes the one at newAddress, which may be the same, a member. It can be
// repeated until it succeeds.
func (a *Admin) Replace(ctx context.Context, idOrAddress, newAddress string) (Member, error) {
	return Member{}, errDraft
}

// Status asks one voter, member or not.
func (a *Admin) Status(ctx context.Context, address string) (Status, error) {
	return Status{}, errDraft
}

// Close frees the connections.
func (a *Admin) Close() error { return nil }

// RecoverOptions of Recover.
type RecoverOptions struct {
	// Dir of the surviving voter, which must not run.
	Dir string
	// Address of the voter from now on; empty: as it was.
	Address string
	// By and Reason are written to the marker.
	By, Reason string
}

// Recovery is what Recover has done; it is also what the marker holds.
type Recovery struct {
	Time       time.Time `json:"time"`
	By         string    `json:"by"`
	Reason     string    `json:"reason"`
	ID         string    `json:"id"`
	Lost       []Member  `json:"lost"`
	LastIndex  uint64    `json:"last_index"`
	Recoveries uint64    `json:"recoveries"`
}

// Recover makes a surviving voter the only member of its cluster: the way out when the other two are gone for good. What
// they have committed without it is lost. It is the operator's word that they never come back.
func Recover(o RecoverOptions) (Recovery, error) { return Recovery{}, errDraft }
