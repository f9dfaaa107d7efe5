// SPDX-License-Identifier: Apache-2.0

package bound

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// logBytes is where the file of a relay begins anew: what is written is not read.
const logBytes = 64 << 20

// log is what a relay that syncs writes to. Without a file, nothing is done.
type log struct {
	file vfs.File
	at   int64
	buf  []byte
}

// openLog makes a file that is full of zeros, so that a sync has to write its data only, as in the log of a node.
func openLog(o RelayOptions, number int64) (*log, error) {
	if o.Sync == "" {
		return &log{}, nil
	}
	name := fmt.Sprintf("bound-%d-%d", os.Getpid(), number)
	if o.Next == "" {
		name += "-last"
	}
	f, err := vfs.OS().OpenFile(filepath.Join(o.Sync, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("bound: %w", err)
	}
	l := &log{file: f}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < logBytes && err == nil; at += int64(len(zeros)) {
		_, err = f.WriteAt(zeros, at)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("bound: %w", err)
	}
	return l, nil
}

// add takes a message, to be written by sync.
func (l *log) add(m message) {
	if l.file == nil {
		return
	}
	for _, p := range m.parts() {
		l.buf = append(l.buf, p...)
	}
}

// sync writes what was added, and syncs it.
func (l *log) sync() error {
	if l.file == nil {
		return nil
	}
	if l.at+int64(len(l.buf)) > logBytes {
		l.at = 0
	}
	_, err := l.file.WriteAt(l.buf, l.at)
	l.at += int64(len(l.buf))
	l.buf = l.buf[:0]
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("bound: %w", err)
	}
	return nil
}

func (l *log) close() {
	if l.file != nil {
		_ = l.file.Close()                 // nothing in it is needed
		_ = vfs.OS().Remove(l.file.Name()) // the directory is removed as well
	}
}
