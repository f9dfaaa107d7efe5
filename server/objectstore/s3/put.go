// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/minio/minio-go/v7"

	"github.com/lockstep-mq/lockstep/store/backup"
)

const (
	// maxParts is the maximum number of parts of an S3 object. The part size is chosen so that an object of the
	// expected size has at most about fewParts parts.
	maxParts   = 10_000
	fewParts   = 9_000
	abortLimit = 10 * time.Second // maximum time to abort a failed upload

	checksumHeader    = "X-Amz-Checksum-Crc32c"
	checksumAlgorithm = "X-Amz-Checksum-Algorithm"
	// putID is the metadata key that identifies a Put.
	putID = "Lockstep-Put"
)

type upload struct { // state of one Put
	p         *Store
	name, id  string // id identifies this Put
	partBytes int64
	free      chan []byte // free buffers; their number limits the memory
	buf       []byte      // part that is being filled

	ctx    context.Context //nolint:containedctx // context of the parts, which outlive a Write
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	uploadID string
	bytes    int64

	mu    sync.Mutex
	parts []minio.CompletePart
}

// Put streams an object to the server. It returns fs.ErrExist if an object with the name exists. If the server does
// not support If-None-Match, Put can replace an object that was created during the upload.
func (p *Store) Put(
	ctx context.Context, name string, o backup.PutOptions, fill func(w io.Writer) error,
) error {
	_, err := p.stat(ctx, name) // fails early; the only check if the server does not support If-None-Match
	if err == nil {
		return fmt.Errorf("write %s: %w", p.Path(name), fs.ErrExist)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	u := p.newUpload(ctx, name, o.AboutBytes)
	defer u.cancel(nil)
	err = fill(u)
	if err == nil {
		err = u.finish()
	}
	if err != nil {
		u.cancel(err)
		u.wg.Wait()
		u.abort() //nolint:contextcheck // it runs after the context has ended
	}
	return err
}

// newUpload creates an upload. It chooses the size of the parts and the number of buffers within the limits for
// parts and memory.
func (p *Store) newUpload(ctx context.Context, name string, about uint64) *upload {
	part := max(p.o.PartBytes, MinPartBytes)
	if need := int64(about/fewParts) + 1; need > part {
		part = (need + 1<<20 - 1) >> 20 << 20
	}
	buffers := p.o.Parallel + 1
	if p.o.MemoryBytes > 0 {
		if int64(buffers)*part > p.o.MemoryBytes && part > MinPartBytes && about < fewParts*MinPartBytes {
			part = max(p.o.MemoryBytes/int64(buffers), MinPartBytes)
		}
		buffers = max(min(int(p.o.MemoryBytes/part), buffers), 2)
	}
	u := &upload{p: p, name: name, id: uuid.NewString(), partBytes: part, free: make(chan []byte, buffers)}
	u.ctx, u.cancel = context.WithCancelCause(ctx)
	first := part
	if about > 0 && about < uint64(part) {
		first = int64(about) // grows if required
	}
	u.free <- make([]byte, 0, first)
	for range buffers - 1 {
		u.free <- nil // the buffer is allocated on first use
	}
	return u
}

// Write adds data to the upload. It blocks while all buffers are in use.
func (u *upload) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 {
		if u.buf == nil {
			if err := u.next(); err != nil {
				return written, err
			}
		}
		n := min(len(b), int(u.partBytes)-len(u.buf))
		u.buf = append(u.buf, b[:n]...)
		b = b[n:]
		written += n
		if len(u.buf) == int(u.partBytes) {
			if err := u.send(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

func (u *upload) next() error {
	select {
	case <-u.ctx.Done():
		return context.Cause(u.ctx)
	case u.buf = <-u.free:
	}
	if u.buf == nil {
		u.buf = make([]byte, 0, u.partBytes)
	}
	return nil
}

func (u *upload) send() error {
	if u.uploadID == "" {
		o := minio.PutObjectOptions{UserMetadata: map[string]string{putID: u.id, checksumAlgorithm: "CRC32C"}}
		err := u.p.try(u.ctx, "start the upload of "+u.p.Path(u.name), func(ctx context.Context) (err error) {
			u.uploadID, err = u.p.core.NewMultipartUpload(ctx, u.p.at.Bucket, u.p.key(u.name), o)
			return err //nolint:wrapcheck // try names the request
		})
		if err != nil {
			return err
		}
	}
	u.mu.Lock()
	number := len(u.parts) + 1
	u.parts = append(u.parts, minio.CompletePart{PartNumber: number})
	u.mu.Unlock()
	if number > maxParts {
		return fmt.Errorf("write %s: %w: larger than announced, more than %d parts", u.p.Path(u.name),
			backup.ErrRemote, maxParts)
	}
	data := u.buf
	u.buf = nil
	u.bytes += int64(len(data))
	u.wg.Go(func() {
		if err := u.put(number, data); err != nil {
			u.cancel(err)
		}
		u.free <- data[:0]
	})
	return nil
}

func (u *upload) put(number int, data []byte) error {
	sum := checksum(data)
	label := fmt.Sprintf("write part %d of %s", number, u.p.Path(u.name))
	var got minio.ObjectPart
	err := u.p.try(u.ctx, label, func(ctx context.Context) (err error) {
		got, err = u.p.core.PutObjectPart(ctx, u.p.at.Bucket, u.p.key(u.name), u.uploadID, number, bytes.NewReader(data),
			int64(len(data)), minio.PutObjectPartOptions{CustomHeader: http.Header{checksumHeader: {sum}}})
		return err //nolint:wrapcheck // try names the request
	})
	if err != nil {
		return err
	}
	if got.ChecksumCRC32C != "" && got.ChecksumCRC32C != sum {
		return fmt.Errorf("%s: %w: server stored checksum %s, sent %s", label, backup.ErrRemote, got.ChecksumCRC32C, sum)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.parts[number-1] = minio.CompletePart{PartNumber: number, ETag: got.ETag, ChecksumCRC32C: got.ChecksumCRC32C}
	return nil
}

// checksum returns the CRC32C of data in the notation of S3.
func checksum(data []byte) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
	return base64.StdEncoding.EncodeToString(b[:])
}

func (u *upload) finish() error {
	if u.uploadID == "" {
		return u.putWhole()
	}
	if len(u.buf) > 0 {
		if err := u.send(); err != nil {
			return err
		}
	}
	u.wg.Wait()
	if err := context.Cause(u.ctx); err != nil {
		return err
	}
	err := u.claim(func(ctx context.Context, o minio.PutObjectOptions) error {
		_, err := u.p.core.CompleteMultipartUpload(ctx, u.p.at.Bucket, u.p.key(u.name), u.uploadID, u.parts, o)
		return err //nolint:wrapcheck // try names the request
	})
	if err != nil {
		return err
	}
	info, err := u.p.stat(u.ctx, u.name)
	if err != nil {
		return err
	}
	if info.Size != u.bytes {
		return fmt.Errorf("write %s: %w: sent %d bytes, server has %d", u.p.Path(u.name), backup.ErrRemote,
			u.bytes, info.Size)
	}
	return nil
}

func (u *upload) putWhole() error {
	sum := checksum(u.buf)
	return u.claim(func(ctx context.Context, o minio.PutObjectOptions) error {
		o.UserMetadata[putID] = u.id
		o.UserMetadata[checksumHeader] = sum
		_, err := u.p.core.PutObject(ctx, u.p.at.Bucket, u.p.key(u.name), bytes.NewReader(u.buf), int64(len(u.buf)), "", "",
			o)
		return err //nolint:wrapcheck // try names the request
	})
}

// claim executes the request that creates the object. If the server supports If-None-Match, the request fails if the
// name is in use. If the response of an earlier attempt was lost, the existing object may be that of this Put. In that
// case, claim succeeds.
func (u *upload) claim(do func(ctx context.Context, o minio.PutObjectOptions) error) error {
	err := u.p.try(u.ctx, "write "+u.p.Path(u.name), func(ctx context.Context) error {
		o := minio.PutObjectOptions{UserMetadata: map[string]string{}}
		if !u.p.unconditional.Load() {
			o.SetMatchETagExcept("*")
		}
		err := do(ctx, o)
		if err != nil && isUnknown(err) && !u.p.unconditional.Swap(true) {
			return do(ctx, minio.PutObjectOptions{UserMetadata: map[string]string{}})
		}
		return err
	})
	if err == nil || !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	info, serr := u.p.stat(u.ctx, u.name)
	switch {
	case serr == nil && info.UserMetadata[putID] == u.id:
		return nil
	case serr == nil:
		return fmt.Errorf("write %s: %w", u.p.Path(u.name), fs.ErrExist)
	case errors.Is(serr, fs.ErrNotExist): // the upload no longer exists
		return fmt.Errorf("write %s: %w: upload was aborted by another process: %w", u.p.Path(u.name), backup.ErrRemote, err)
	}
	return errors.Join(err, serr)
}

// abort deletes the uploaded parts on the server. If that fails, a later Sweep deletes them.
func (u *upload) abort() {
	if u.uploadID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), abortLimit)
	defer cancel()
	_ = u.p.try(ctx, "abort the upload of "+u.p.Path(u.name), func(ctx context.Context) error {
		err := u.p.core.AbortMultipartUpload(ctx, u.p.at.Bucket, u.p.key(u.name), u.uploadID)
		if err != nil && isMissing(err) {
			return nil
		}
		return err //nolint:wrapcheck // try names the request
	})
}
