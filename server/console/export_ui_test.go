// SPDX-License-Identifier: Apache-2.0

package console

import (
	"strings"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// ErrorText returns the text that a page shows for an error.
func ErrorText(err error) string { return describe(err).Text }

// ErrorTitle returns the title that a page shows for an error.
func ErrorTitle(err error) string { return describe(err).Title }

// ErrorAdvice returns the suggested action that a page shows for an error.
func ErrorAdvice(err error) string { return describe(err).Action }

// SitesPage renders the live part of the Sites page for the given responses of a node.
func SitesPage(st *pb.GetSiteResponse, of *pb.GetStatusResponse) (string, error) {
	templates, err := loadTemplates(pages(), nil)
	if err != nil {
		return "", err
	}
	d := newSites(st, &pb.SiteInfo{})
	d.addNodes([]*nodeView{{Info: &pb.NodeStatus{Name: "a"}, Status: of}})
	var b strings.Builder
	err = templates["sites"].ExecuteTemplate(&b, "live", d)
	return b.String(), err
}

// FleetPage renders the live part of the Fleet page for the given responses of a node.
func FleetPage(resp *pb.GetFleetResponse, moves *pb.ListMovesResponse, consoleURL string) (string, error) {
	templates, err := loadTemplates(pages(), nil)
	if err != nil {
		return "", err
	}
	d := newFleet(resp)
	d.addMoves(moves)
	for _, p := range d.Pairs {
		if !p.Own {
			p.Consoles = []consoleAddress{{Node: consoleURL, URL: consoleURL}}
		}
	}
	var b strings.Builder
	err = templates["fleet"].ExecuteTemplate(&b, "live", d)
	return b.String(), err
}
