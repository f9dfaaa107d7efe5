package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// This file is what package backup needs to look into a checkpoint that is not (or not yet) in a data directory.

// CheckFile checks the last checkpoint of an open page file, such as page.OpenImage gives, as Store.Check does.
func CheckFile(ctx context.Context, file *page.File, progress func(done, total uint64)) (Report, error) {
	return checkFile(ctx, file, file.Pin(), offlineCacheBytes, nil, progress)
}

// DigestFile hashes the logical content of the last checkpoint of an open page file, as Store.Digest does.
func DigestFile(ctx context.Context, file *page.File) (Digest, error) {
	return digestFile(ctx, file, file.Pin(), offlineCacheBytes, nil)
}

// Messages counts the messages that are stored in the snapshot, those included that nobody wants any more and that
// share a page with others. It reads the index of messages, not the messages.
func (sn *Snapshot) Messages(ctx context.Context) (uint64, error) {
	view := tree.New(sn.file, sn.pin.Meta().Root, tree.Options{CacheBytes: sn.s.o.MemoryBudget / 32}).View()
	it := view.Scan([]byte{indexLetter}, []byte{indexLetter + 1})
	pace := sn.s.Pace(ctx, 0)
	var n uint64
	for it.Next() {
		if err := errors.Join(ctx.Err(), pace.Did(ctx, len(it.Key())+len(it.Value()))); err != nil {
			return 0, fmt.Errorf("count messages: %w", err)
		}
		e, err := decodeIndexEntry(it.Key(), it.Value())
		if err != nil {
			return 0, err
		}
		n += e.count
	}
	if err := it.Err(); err != nil {
		return 0, fmt.Errorf("count messages: %w", err)
	}
	return n, nil
}
