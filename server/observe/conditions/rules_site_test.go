// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/queue"
)

var errNoResponse = errors.New("no response")

// siteConditions returns the kinds that the rules report for the status of a site.
func siteConditions(r *Rules, s *Site) []Kind {
	var f findings
	r.site(&f, s)
	return kinds(&f)
}

// A primary reports that the replica does not respond, that the other site was promoted, or that a second primary
// exists.
func TestPrimarySiteConditions(t *testing.T) {
	const none, primary, replica, stopped = queue.SiteNone, queue.SitePrimary, queue.SiteReplica, queue.SiteStopped
	other := func(role queue.SiteRole, epoch uint64) *RemoteSite { return &RemoteSite{"west", role, epoch} }
	for name, tt := range map[string]struct {
		site Site
		want []Kind
	}{
		"with its replica": {Site{Role: primary, Remote: other(replica, 3)}, nil},
		"no response yet":  {Site{Role: primary}, nil},
		"lag above the limit": {
			Site{Role: primary, Remote: other(replica, 3), WritesHeld: true, WriteLag: time.Minute, MaxLag: time.Second},
			[]Kind{SiteLag},
		},
		"replica does not respond": {Site{Role: primary, Err: errNoResponse}, []Kind{SiteUnreachable}},
		"replica stops responding": {
			Site{Role: primary, Remote: other(replica, 3), Err: errNoResponse},
			[]Kind{SiteUnreachable},
		},
		"promoted other site": {
			Site{Role: primary, Remote: other(primary, 4), Superseded: true},
			[]Kind{SupersededBySite},
		},
		"promoted and unreachable": {
			Site{Role: primary, Remote: other(primary, 4), Superseded: true, Err: errNoResponse},
			[]Kind{SiteUnreachable, SupersededBySite},
		},
		"second primary":      {Site{Role: primary, Remote: other(primary, 2)}, []Kind{TwoPrimaries}},
		"pair without sites":  {Site{Role: primary, Remote: other(none, 0)}, []Kind{TwoPrimaries}},
		"stopped old primary": {Site{Role: primary, Remote: other(stopped, 2)}, nil},
		"second primary stops responding": {
			Site{Role: primary, Remote: other(primary, 2), Err: errNoResponse},
			[]Kind{SiteUnreachable},
		},
		"before the set-up":              {Site{Role: none, Remote: other(none, 0)}, nil},
		"before the set-up, no response": {Site{Role: none, Err: errNoResponse}, nil},
		"before the demotion":            {Site{Role: none, Remote: other(primary, 1)}, []Kind{TwoPrimaries}},
		"stopped":                        {Site{Role: stopped, Remote: other(replica, 3)}, []Kind{SiteStopped}},
		"stopped, no response":           {Site{Role: stopped, Err: errNoResponse}, []Kind{SiteStopped}},
		"stopped, promoted other site": {
			Site{Role: stopped, Remote: other(primary, 4), Superseded: true, Err: errNoResponse},
			[]Kind{SupersededBySite},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.site.Active, tt.site.Epoch = true, 3
			require.ElementsMatch(t, tt.want, siteConditions(&Rules{}, &tt.site))
			tt.site.Active = false
			require.Empty(t, siteConditions(&Rules{}, &tt.site), "the active reports the conditions of its pair")
		})
	}
	require.Empty(t, siteConditions(&Rules{}, nil), "no sites")
}

// A connected replica reports its lag. Otherwise it reports the reason why it is not connected.
func TestReplicaSiteConditions(t *testing.T) {
	var r Rules
	report := func(p SiteReplication, fault Kind, err error) []Kind {
		return siteConditions(&r, &Site{
			Active: true, Role: queue.SiteReplica, Replication: p, Err: err, Behind: fault == SiteBehind,
			Diverged: fault == SiteDiverged,
		})
	}
	connected := SiteReplication{Connected: true, Lag: MaxSiteLag}
	require.Empty(t, report(connected, "", nil))
	connected.Lag++
	require.Equal(t, []Kind{SiteLag}, report(connected, "", nil))
	require.Equal(t, []Kind{SiteUnreachable}, report(SiteReplication{Lag: time.Hour}, "", nil), "the lag is not known")
	require.Equal(t, []Kind{SiteUnreachable}, report(SiteReplication{}, "", errNoResponse))

	require.Equal(t, []Kind{SiteBehind}, report(SiteReplication{}, SiteBehind, errNoResponse))
	require.Equal(t, []Kind{SiteBehind}, report(SiteReplication{}, "", nil), "during the next attempt")
	require.Equal(t, []Kind{SiteBehind}, report(SiteReplication{}, "", errNoResponse), "until the site connects")
	require.Equal(t, []Kind{SiteDiverged}, report(SiteReplication{}, SiteDiverged, errNoResponse))
	require.Equal(t, []Kind{SiteDiverged}, report(SiteReplication{}, "", nil))
	connected.Lag = 0
	require.Empty(t, report(connected, "", nil))
	require.Equal(t, []Kind{SiteUnreachable}, report(SiteReplication{}, "", nil), "the previous reason no longer applies")

	require.Equal(t, []Kind{SiteBehind}, report(SiteReplication{}, SiteBehind, errNoResponse))
	require.Empty(t, siteConditions(&r, nil))
	require.Equal(t, []Kind{SiteUnreachable}, report(SiteReplication{}, "", nil), "after a change of role")
}

// If a replica is not connected, the details of the condition contain the last known error.
func TestSiteUnreachableDetails(t *testing.T) {
	var r Rules
	s := Site{Active: true, Role: queue.SiteReplica}
	for _, err := range []error{errNoResponse, nil} {
		s.Err = err
		var f findings
		r.site(&f, &s)
		require.Equal(t, []Report{{Kind: SiteUnreachable, Details: errNoResponse.Error()}}, f.all)
	}
}

// Reports includes the conditions of sites.
func TestReportsIncludeSites(t *testing.T) {
	c := config.Default()
	c.Coordinator.Type = config.CoordinatorNone
	in := &Input{
		Config: &c, Site: &Site{Active: true, Role: queue.SiteStopped},
	}
	var r Rules
	found := false
	for _, reported := range r.Reports(in) {
		found = found || reported.Kind == SiteStopped && reported.Node == Node{}
	}
	require.True(t, found)
}
