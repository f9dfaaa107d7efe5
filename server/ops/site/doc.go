// SPDX-License-Identifier: Apache-2.0

// Package site replicates a pair to a pair at another site, and changes the roles of the two sites.
//
// The active node of the replica pulls the committed log from the active node of the primary. It commits each
// transaction unchanged, together with the position of the transaction in the primary's log (decision 0034, INV-26).
// The role of a site is part of the replicated state of its pair.
package site

import (
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Errors of this package.
var (
	ErrRole           = apierror.ErrSiteRole
	ErrSwitch         = apierror.ErrSiteSwitch
	ErrPrimaryAnswers = apierror.ErrSitePrimaryAnswers
	ErrDiverged       = apierror.ErrSiteDiverged
	ErrBehind         = apierror.ErrSiteBehind
	ErrUnreachable    = apierror.ErrSiteUnreachable
	ErrNotCompared    = apierror.ErrSiteNotCompared
)

func roleToProto(r queue.SiteRole) pb.SiteRole {
	switch r {
	case queue.SitePrimary:
		return pb.SiteRole_SITE_ROLE_PRIMARY
	case queue.SiteReplica:
		return pb.SiteRole_SITE_ROLE_REPLICA
	case queue.SiteStopped:
		return pb.SiteRole_SITE_ROLE_STOPPED
	default:
		return pb.SiteRole_SITE_ROLE_UNSPECIFIED
	}
}

// positionToProto returns nil for the zero position.
func positionToProto(p lsn.Position) *pb.Position {
	if p.IsZero() {
		return nil
	}
	return &pb.Position{Term: p.Term, Lsn: p.LSN, Chain: p.Chain}
}

func positionFromProto(p *pb.Position) lsn.Position {
	return lsn.Position{Term: p.GetTerm(), LSN: p.GetLsn(), Chain: p.GetChain()}
}
