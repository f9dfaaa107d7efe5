// SPDX-License-Identifier: Apache-2.0

package bound

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// logBytes is the size of the file. Writes wrap around, because the file is never read.
const logBytes = 64 << 20

// log is the log of a relay with Sync. Without a file, it does nothing.
type log struct {
	file vfs.File
	at   int64
	buf  []byte
}

// openLog creates a file filled with zeros, so that a sync writes only data, as in the log of a node.
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

func (l *log) add(m message) {
	if l.file == nil {
		return
	}
	for _, p := range m.parts() {
		l.buf = append(l.buf, p...)
	}
}

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
		_ = l.file.Close()                 // the content is not needed
		_ = vfs.OS().Remove(l.file.Name()) // the directory is removed as well
	}
}
