package main

import (
	"fmt"
	"strings"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
)

// printLeft names what the nodes keep and do not use.
func (a *app) printLeft(nodes []nodeJSON) error {
	for _, n := range nodes {
		if len(n.LeftBehind) == 0 {
			continue
		}
		var all []string
		for _, l := range n.LeftBehind {
			all = append(all, fmt.Sprintf("%s (%s)", l.Path, out.Bytes(l.Bytes)))
		}
		if err := a.print.Sentence("\nnot used any more on %s, may be removed: %s", n.Name, strings.Join(all, ", ")); err != nil {
			return err
		}
	}
	return nil
}
