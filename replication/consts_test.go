package replication_test

import "github.com/lockstep-mq/lockstep/store/vfs"

const (
	opSync  = vfs.OpSync
	opWrite = vfs.OpWrite
)
