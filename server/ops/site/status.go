// SPDX-License-Identifier: Apache-2.0

package site

import (
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Superseded reports whether the other site was promoted later than this site: it has the same lineage and a higher
// epoch.
func (s *Status) Superseded() bool { return s.Remote != nil && supersedes(s.Remote, &s.State) }

// RemoteRole returns the last known role of the other site. It returns queue.SiteNone if the role is unknown.
func (s *Status) RemoteRole() queue.SiteRole {
	switch s.Remote.GetRole() {
	case pb.SiteRole_SITE_ROLE_PRIMARY:
		return queue.SitePrimary
	case pb.SiteRole_SITE_ROLE_REPLICA:
		return queue.SiteReplica
	case pb.SiteRole_SITE_ROLE_STOPPED:
		return queue.SiteStopped
	default:
		return queue.SiteNone
	}
}
