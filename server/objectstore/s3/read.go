// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/minio/minio-go/v7"

	"github.com/lockstep-mq/lockstep/store/backup"
)

const (
	// A sequential reader fetches readAhead blocks ahead, and keptBlocks blocks are cached.
	blockBytes = 1 << 20
	readAhead  = 8
	keptBlocks = 16
	// A read of at most smallRead bytes is fetched separately, unless its block is cached or follows the last block.
	smallRead = 4096
)

type reader struct {
	p          *Store
	name, etag string
	size       int64

	ctx    context.Context //nolint:containedctx // limits the reads, as documented for Open
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	blocks map[int64]*block
	used   []int64 // numbers of the blocks, the most recently used last
	last   int64   // number of the last block read; -1 if no block was read
}

type block struct {
	done chan struct{}
	data []byte
	err  error
}

// Open opens an object. Reads fail after ctx has ended, and if the object was replaced.
func (p *Store) Open(ctx context.Context, name string) (backup.Object, error) {
	info, err := p.stat(ctx, name)
	if err != nil {
		return nil, err
	}
	r := &reader{p: p, name: name, etag: info.ETag, size: info.Size, blocks: map[int64]*block{}, last: -1}
	r.ctx, r.cancel = context.WithCancel(ctx)
	return r, nil
}

func (r *reader) SizeBytes() (int64, error) { return r.size, nil }

func (r *reader) Close() error {
	r.cancel()
	r.wg.Wait()
	return nil
}

func (r *reader) ReadAt(b []byte, off int64) (int, error) {
	done := 0
	for done < len(b) && off < r.size {
		n, err := r.readSome(b[done:], off)
		done += n
		off += int64(n)
		if err != nil {
			return done, err
		}
	}
	if done < len(b) {
		return done, io.EOF
	}
	return done, nil
}

func (r *reader) readSome(b []byte, off int64) (int, error) {
	at := off / blockBytes
	if len(b) <= smallRead && !r.cachedOrNext(at) {
		n := min(int64(len(b)), r.size-off)
		return int(n), r.fetch(b[:n], off)
	}
	k := r.block(at)
	select {
	case <-k.done:
	case <-r.ctx.Done():
		return 0, fmt.Errorf("read %s: %w", r.p.Path(r.name), r.ctx.Err())
	}
	if k.err != nil {
		r.evict(at)
		return 0, k.err
	}
	return copy(b, k.data[off-at*blockBytes:]), nil
}

func (r *reader) cachedOrNext(at int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.blocks[at] != nil || r.last >= 0 && at == r.last+1
}

// block returns the block with number at. It fetches the block unless the block is cached. For a sequential reader,
// it also starts to fetch the following blocks.
func (r *reader) block(at int64) *block {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.begin(at)
	if at == r.last+1 || at == r.last {
		for next := at + 1; next <= at+readAhead && next*blockBytes < r.size; next++ {
			r.begin(next)
		}
	}
	r.last = at
	for len(r.used) > keptBlocks+readAhead {
		delete(r.blocks, r.used[0])
		r.used = r.used[1:]
	}
	return k
}

// begin returns the block with number at, and starts to fetch it unless it is cached. The caller must hold mu.
func (r *reader) begin(at int64) *block {
	if k := r.blocks[at]; k != nil {
		i := slices.Index(r.used, at)
		r.used = append(slices.Delete(r.used, i, i+1), at)
		return k
	}
	k := &block{done: make(chan struct{})}
	r.blocks[at] = k
	r.used = append(r.used, at)
	r.wg.Go(func() {
		defer close(k.done)
		k.data = make([]byte, min(blockBytes, r.size-at*blockBytes))
		k.err = r.fetch(k.data, at*blockBytes)
	})
	return k
}

// evict removes a block that could not be fetched.
func (r *reader) evict(at int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.used, at); i >= 0 {
		r.used = slices.Delete(r.used, i, i+1)
		delete(r.blocks, at)
	}
}

func (r *reader) fetch(b []byte, off int64) error {
	if len(b) == 0 {
		return nil
	}
	return r.p.try(r.ctx, "read "+r.p.Path(r.name), func(ctx context.Context) error {
		var o minio.GetObjectOptions
		err := errors.Join(o.SetRange(off, off+int64(len(b))-1), o.SetMatchETag(r.etag))
		if err != nil {
			return err
		}
		body, _, _, err := r.p.core.GetObject(ctx, r.p.at.Bucket, r.p.key(r.name), o)
		if err != nil {
			return err //nolint:wrapcheck // try names the request
		}
		_, err = io.ReadFull(body, b)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errIncomplete
		}
		return errors.Join(err, body.Close())
	})
}
