// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/lockstep-mq/lockstep/server/observe/conditions"

func fleetFamilies() []family {
	of := func(name, help string, read func(f *conditions.Fleet) float64) family {
		return gaugeOf(name, whenFleet, help, nil, func(s *snapshot, put emitFunc) {
			if f := s.node.Fleet; f != nil {
				put(read(f))
			}
		})
	}
	return []family{
		of("fleet_pairs", "Registered pairs of the fleet, in the node's copy of the directory.",
			func(f *conditions.Fleet) float64 { return float64(f.Pairs) }),
		of("fleet_queues", "Queues of all pairs of the fleet, in the node's copy of the directory.",
			func(f *conditions.Fleet) float64 { return float64(f.Queues) }),
		of("fleet_directory_current", "1 while the node's copy of the directory receives changes from etcd.",
			func(f *conditions.Fleet) float64 { return boolValue(f.Current) }),
	}
}
