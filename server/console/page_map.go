// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"strings"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	mapColumns = 32
	mapRegions = 512
	mapCell    = 12 // width and height of a cell, including spacing
	mapInside  = 10 // width and height without spacing
)

func mapPage() Page {
	return Page{
		Path: "/map", Title: "Page file", Right: "operate", Template: "map", Hidden: true, Under: "/store", Load: loadMap,
	}
}

type mapView struct {
	Node         *nodeView
	Nodes        []*nodeView
	Map          *pb.GetPageMapResponse
	Cells        []mapCellView
	Uses         []mapUse
	Lines        []mapLine
	PagesPerCell uint64
	// Width and Height are the size of the drawing, in SVG units.
	Width, Height int
}

// mapUse is a use of pages, with the number of such pages.
type mapUse struct {
	Class, Title, Description string
	Pages                     uint64
}

type mapCellView struct {
	X, Y  int
	Title string
	Parts []mapPart
}

type mapPart struct {
	Class string
	X, W  float64
}

// mapLine is a row of the table: the sums over the cells of one line of the map.
type mapLine struct {
	*pb.PageRegion

	Held uint64
}

func loadMap(ctx context.Context, v *View) (any, error) {
	n, m, err := v.nodeAndMaintenance(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, err
	}
	r, err := m.GetPageMap(ctx, &pb.GetPageMapRequest{Regions: mapRegions})
	if err != nil {
		return nil, err
	}
	return viewMap(n, nodes, r), nil
}

func regionUses(r *pb.PageRegion) []mapUse {
	return []mapUse{
		{"messages", "Messages", "message bodies; a page can contain several small messages", r.GetMessages()},
		{"index", "Index", "message locations, queues, subscriptions, producers", r.GetIndex()},
		{"bitmap", "Allocation map", "stored in the page file", r.GetBitmap()},
		{
			"checkpoint", "Held for a checkpoint", "freed, but used by one of the last two checkpoints",
			r.GetHeldCheckpoint(),
		},
		{"reader", "Held for a reader", "freed, but a backup, a scan or the other node may read them", r.GetHeldReader()},
		{"free", "Free", "available", r.GetFree()},
	}
}

func viewMap(node *nodeView, nodes []*nodeView, m *pb.GetPageMapResponse) *mapView {
	d := &mapView{Node: node, Nodes: nodes, Map: m, Uses: regionUses(m.GetTotal()), Width: mapColumns * mapCell}
	regions := m.GetRegions()
	if len(regions) == 0 {
		return d
	}
	d.PagesPerCell = regions[0].GetPages()
	d.Height = (len(regions) + mapColumns - 1) / mapColumns * mapCell
	for i, r := range regions {
		if i%mapColumns == 0 {
			d.Lines = append(d.Lines, mapLine{PageRegion: &pb.PageRegion{FirstPage: r.GetFirstPage()}})
		}
		d.Lines[len(d.Lines)-1].add(r)
		d.Cells = append(d.Cells, viewCell(i, r))
	}
	return d
}

func viewCell(i int, r *pb.PageRegion) mapCellView {
	c := mapCellView{X: i % mapColumns * mapCell, Y: i / mapColumns * mapCell}
	reported := make([]string, 0, 4)
	at := float64(c.X)
	for _, u := range regionUses(r) {
		if u.Pages == 0 {
			continue
		}
		w := mapInside * float64(u.Pages) / float64(r.GetPages())
		c.Parts = append(c.Parts, mapPart{Class: u.Class, X: at, W: w})
		at += w
		reported = append(reported, strings.ToLower(u.Title)+" "+formatNumber(u.Pages))
	}
	c.Title = fmt.Sprintf("Pages %s to %s: %s", formatNumber(r.GetFirstPage()),
		formatNumber(r.GetFirstPage()+r.GetPages()-1), strings.Join(reported, ", "))
	return c
}

func (l *mapLine) add(r *pb.PageRegion) {
	l.Pages += r.GetPages()
	l.Messages += r.GetMessages()
	l.Index += r.GetIndex()
	l.Bitmap += r.GetBitmap()
	l.Held += r.GetHeldCheckpoint() + r.GetHeldReader()
	l.Free += r.GetFree()
}

func (d *mapView) Bytes(pages uint64) uint64 { return pages * uint64(d.Map.GetPageSize()) }

func (d *mapView) Share(pages uint64) int { return percent(pages, d.Map.GetTotal().GetPages()) }

func (d *mapView) Summary() string {
	t := d.Map.GetTotal()
	return fmt.Sprintf("page.db: %d %% messages, %d %% index, %d %% free, %s free pages at "+
		"the end; values in the tables below", d.Share(t.GetMessages()), d.Share(t.GetIndex()),
		d.Share(t.GetFree()), formatNumber(d.Map.GetFreeTail()))
}
