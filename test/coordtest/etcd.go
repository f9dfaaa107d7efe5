// SPDX-License-Identifier: Apache-2.0

package coordtest

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
)

// StartEtcd starts an etcd with its data in dir. If address is empty, etcd listens on a free port. The caller closes
// the server. StartEtcd retries while the port is in use, because the kernel may have assigned it to another
// connection.
func StartEtcd(t *testing.T, dir, address string) *embedded.Server {
	t.Helper()
	var s *embedded.Server
	var err error
	require.Eventually(t, func() bool {
		s, err = embedded.Start(t.Context(), embedded.Options{Dir: dir, Address: address, UnsafeNoFsync: true})
		return !errors.Is(err, syscall.EADDRINUSE)
	}, bound, 50*time.Millisecond, "port %s is still in use", address)
	require.NoError(t, err)
	return s
}
