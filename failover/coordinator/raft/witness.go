// SPDX-License-Identifier: Apache-2.0

package raft

import "context"

// RunWitness runs a voter without a data plane until ctx ends: the third one, which preserves the record of a pair when
// a node is lost. `ready`, if not nil, is called once, when the witness listens; it must not close the voter.
func RunWitness(ctx context.Context, o Options, ready func(*Voter)) error {
	o.Kind = KindWitness
	v, err := Start(o)
	if err != nil {
		return err
	}
	if ready != nil {
		ready(v)
	}
	<-ctx.Done()
	return v.Close()
}
