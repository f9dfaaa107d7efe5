package main

import (
	"fmt"
	"time"
)

// String is what a person has to know of it.
func (f *forcedJSON) String() string {
	text := fmt.Sprintf("at %s by %s; what the other node had acknowledged after LSN %d may be lost, and is kept in "+
		"a file when that one comes back",
		localTime(f.At), f.By, f.AfterLSN)
	if f.Reason != "" {
		text += " (" + f.Reason + ")"
	}
	return text
}

// printChanges says what an operator has forced and is not settled yet, and when the role goes back by itself.
func (a *app) printChanges(s statusJSON) error {
	if f := s.Pair.Forced; f != nil && !f.Settled {
		if err := a.print.Sentence("FORCED: node %s was made active %s", s.nodeName(f.NodeID), f); err != nil {
			return err
		}
	}
	if s.Pair.FailbackAt.IsZero() {
		return nil
	}
	left := max(time.Until(s.Pair.FailbackAt), 0).Round(time.Second)
	return a.print.Sentence("failback to the preferred node in %s", left)
}
