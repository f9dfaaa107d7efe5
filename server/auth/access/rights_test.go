// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// Rights returns exactly the rights that May grants.
func TestRights(t *testing.T) {
	const all = access.QueueRights | access.Operate | access.Audit
	alice, root := &access.Identity{Principal: "alice"}, &access.Identity{Principal: "root"}
	require.Equal(t, all, (*access.Rules)(nil).Rights(alice, "q"))
	var rules access.Rules
	require.Equal(t, all, rules.Rights(alice, "q"))
	rules.Configure(access.Setting{Operators: []string{"root"}})
	require.NoError(t, rules.Load(1, entries(t,
		rule("alice", "", "orders.*", access.Publish|access.Browse),
		rule("alice", "", "", access.Audit),
		rule("bob", "", "", 0, "operator"),
		&pb.AccessRole{Name: "operator", Rights: access.RightsToProto(access.Operate)},
	)))
	require.Equal(t, all, rules.Rights(root, "q"))
	require.Equal(t, access.Operate, rules.Rights(&access.Identity{Principal: "bob"}, "q"))
	require.Zero(t, rules.Rights(&access.Identity{Principal: "carol"}, ""))
	for _, name := range []string{"orders.eu", "other", ""} {
		rights := rules.Rights(alice, name)
		for right := access.Publish; right < access.Peer; right <<= 1 {
			require.Equal(t, rules.May(alice, right, name) == nil, rights&right != 0, "%s %q", right, name)
		}
	}
}
