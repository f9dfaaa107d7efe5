// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"strings"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/store/datadir"
)

// printLeft lists files that the nodes retain but do not use. It recommends removal only if the pair has the content
// of the files. Before both nodes are in sync, a quarantined store may be the only copy of acknowledged messages. After
// a forced failover, an old page file may be the only copy of discarded messages, even when both nodes are in sync. A
// truncated log tail is always the only copy.
func printLeft(env *cli.Env, s pairstatus.Status) error {
	removable := "unused files on %s (" + removalAdvice(&s) + "): %s"
	for _, n := range s.Nodes {
		var unused, cut []string
		for _, l := range n.LeftBehind {
			text := fmt.Sprintf("%s (%s)", l.Path, output.Bytes(l.Bytes))
			switch l.Kind {
			case datadir.LeftTruncatedLog:
				cut = append(cut, text)
			case datadir.LeftOldPageFile:
				unused = append(unused, text+"; to delete it, use lockstep store drop-old --node "+n.Name)
			default:
				unused = append(unused, text)
			}
		}
		for _, line := range []struct {
			format string
			paths  []string
		}{
			{removable, unused},
			{"saved records on %s that the promoted node or site lacks (to show them, use lockstep store dump-log FILE " +
				"--messages): %s", cut},
		} {
			if len(line.paths) == 0 {
				continue
			}
			if err := env.Print.Sentence("\n"+line.format, n.Name, strings.Join(line.paths, ", ")); err != nil {
				return err
			}
		}
	}
	return nil
}

func removalAdvice(s *pairstatus.Status) string {
	switch forced := s.Pair != nil && s.Pair.Forced != nil; {
	case forced && settled(s):
		return "may be the only copy of messages discarded in the forced failover of " +
			output.LocalTime(s.Pair.Forced.At) + ": copy them before you remove them"
	case forced:
		return "DO NOT REMOVE: may be the only copy of messages"
	case settled(s):
		return "can be removed"
	default:
		return "DO NOT REMOVE until both nodes are in sync: may be the only copy of messages"
	}
}

// settled reports whether both nodes have all messages, or the responding node is not in a pair. The roles are
// checked as well: a node with a store that may have lost data can still be in sync according to the cluster
// record.
func settled(s *pairstatus.Status) bool {
	if s.Pair != nil && (len(s.Pair.InSync) < 2 || s.Pair.Forced != nil && !s.Pair.Forced.Settled) {
		return false
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		switch role := pairstatus.BaseRole(n.Role); {
		case n.Error != "":
		case role == pairstatus.Active:
		case s.Pair != nil && role == "standby":
		default:
			return false
		}
	}
	return true
}
