// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// SettingVariant measures publishing to nodes that were started with one changed setting. The name and value of the
// setting are only copied to the result.
func SettingVariant(ctx context.Context, t bench.Target, o bench.PublishOptions, setting,
	value string,
) (bench.Result, error) {
	if t.Pair == nil {
		return bench.Result{}, errors.New("comparing settings requires nodes started by the benchmark")
	}
	before, err := storeStatus(ctx, t)
	if err != nil {
		return bench.Result{}, err
	}
	bench.ResetPeaks(t.Processes)
	r, err := bench.PublishInto(ctx, t, o, func(r *bench.Result) error {
		after, err := storeStatus(ctx, t)
		if err != nil {
			return err
		}
		r.Checkpoints = int(after.GetCheckpoint() - before.GetCheckpoint())
		r.CheckpointsPerMin = float64(r.Checkpoints) * 60 / r.Seconds
		r.LogMB = float64(after.GetLogBytes()) / 1e6
		return nil
	})
	r.Workload, r.Setting, r.Value = "knobs", setting, value
	return r, err
}

func storeStatus(ctx context.Context, t bench.Target) (*pb.StoreStatus, error) {
	active, err := t.Client.WaitActive(ctx)
	if err != nil {
		return nil, err
	}
	n := t.Pair.Find(active.Address)
	if n == nil {
		return nil, fmt.Errorf("unknown active node %s", active.Address)
	}
	s, err := n.Status(ctx)
	if err != nil {
		return nil, err
	}
	return s.GetStore(), nil
}
