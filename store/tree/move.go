// SPDX-License-Identifier: Apache-2.0

package tree

import "github.com/lockstep-mq/lockstep/store/page"

// MoveNodes marks up to limit flushed nodes with a first page >= from: the next Flush after Commit writes them to new
// pages. It returns the number of marked nodes. Their parents are also written, but not counted. Edit documents the
// errors.
func (e *Edit) MoveNodes(from page.No, limit int) (moved int, err error) {
	if err := e.begin(); err != nil {
		return 0, err
	}
	if e.root.isZero() {
		return 0, nil
	}
	m := mover{e: e, from: from, left: limit}
	if _, err := m.move(&e.root, -1); err != nil {
		return 0, e.failed(err)
	}
	return limit - m.left, nil
}

type mover struct {
	e    *Edit
	from page.No
	left int
}

func (m *mover) take(k childRef) bool {
	if k.n != nil || k.ext.First < m.from || m.left <= 0 {
		return false
	}
	m.left--
	return true
}

// move marks the nodes at or below k that must be moved, and reports whether k changed.
func (m *mover) move(k *childRef, level int) (bool, error) {
	if level == 0 {
		if !m.take(*k) {
			return false, nil
		}
		_, err := m.e.own(k, 0)
		return true, err
	}
	take := m.take(*k)
	n, err := m.e.load(*k, level)
	if err != nil {
		return false, err
	}
	own := func() error {
		if n.owner == m.e.id {
			return nil
		}
		var err error
		n, err = m.e.own(k, level)
		return err
	}
	if take {
		if err := own(); err != nil {
			return true, err
		}
	}
	changed := take
	for i := 0; n.level > 0 && i < len(n.children) && m.left > 0; i++ {
		child := n.children[i]
		moved, err := m.move(&child, int(n.level)-1)
		if err != nil {
			return changed, err
		}
		if !moved {
			continue
		}
		if err := own(); err != nil {
			return changed, err
		}
		n.children[i], changed = child, true
	}
	return changed, nil
}
