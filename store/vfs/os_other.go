// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"runtime"
)

// OS returns a filesystem that rejects all operations.
func OS() FS { return noFS{} }

type noFS struct{}

var errNoFS = fmt.Errorf("store is not supported on %s; run the node on Linux or another Unix", runtime.GOOS)

func (noFS) OpenFile(string, int, fs.FileMode) (File, error) { return nil, errNoFS }

func (noFS) Remove(string) error { return errNoFS }

func (noFS) Rename(string, string) error { return errNoFS }

func (noFS) MkdirAll(string, fs.FileMode) error { return errNoFS }

func (noFS) ReadDir(string) ([]string, error) { return nil, errNoFS }

func (noFS) Stat(string) (FileInfo, error) { return FileInfo{}, errNoFS }

func (noFS) SyncDir(string) error { return errNoFS }

func (noFS) Lock(string) (io.Closer, error) { return nil, errNoFS }

func (noFS) Usage(string) (Usage, error) { return Usage{}, errNoFS }
