// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/lockstep-mq/lockstep/server/observe/conditions"

func fleetFamilies() []family {
	of := func(name, help string, read func(f *conditions.Fleet) float64) family {
		return gaugeOf(name, whenFleet, help, nil, func(s *snapshot, put emitFunc) {
			if f := s.node.Fleet; f != nil && f.Moves != nil { // without fleet.pair, the node has no copy
				put(read(f))
			}
		})
	}
	return append([]family{
		of("fleet_pairs", "Registered pairs of the fleet, in the node's copy of the directory.",
			func(f *conditions.Fleet) float64 { return float64(f.Pairs) }),
		of("fleet_queues", "Queues of all pairs of the fleet, in the node's copy of the directory.",
			func(f *conditions.Fleet) float64 { return float64(f.Queues) }),
		of("fleet_directory_current", "1 while the node's copy of the directory receives changes from etcd.",
			func(f *conditions.Fleet) float64 { return boolValue(f.Current) }),
	}, moveFamilies()...)
}

func moveFamilies() []family {
	of := func(f family, when string, read func(m *conditions.FleetMoves, put emitFunc)) family {
		f.When = when
		f.read = func(s *snapshot, put emitFunc) {
			if f := s.node.Fleet; f != nil && f.Moves != nil {
				read(f.Moves, put)
			}
		}
		return f
	}
	const active = "on the active node, " + whenFleet
	return []family{
		of(gaugeOf("fleet_moves", "", "Moves of queues to this pair that have not ended.", []string{"phase"}, nil), active,
			func(m *conditions.FleetMoves, put emitFunc) {
				for phase, n := range m.Phases {
					put(float64(n), phase)
				}
			}),
		of(gaugeOf("fleet_fenced_queues", "", "Queues that are fenced at this pair, because they move to another pair.",
			nil, nil), active, func(m *conditions.FleetMoves, put emitFunc) {
			if m.Phases != nil {
				put(float64(m.FencedQueues))
			}
		}),
		of(counterOf("fleet_moves_ended_total", "Moves of queues to this pair that have ended since the start of the node: "+
			"the pair has taken the queues, or the move was canceled.", []string{"outcome"}, nil), whenFleet,
			func(m *conditions.FleetMoves, put emitFunc) {
				put(float64(m.Done), "done")
				put(float64(m.Canceled), "canceled")
			}),
		of(counterOf("fleet_copied_bytes_total", "Bytes of messages that were copied to this pair by moves of queues, since "+
			"the start of the node.", nil, nil), whenFleet,
			func(m *conditions.FleetMoves, put emitFunc) { put(float64(m.CopiedBytes)) }),
	}
}
