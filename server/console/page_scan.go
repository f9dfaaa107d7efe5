// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func scanPage() Page {
	return Page{
		Path: "/scan", Title: "Scan", Right: "operate", Template: "scan", Hidden: true, Under: "/store", Load: loadScan,
	}
}

type scanView struct {
	Node   *nodeView
	Result *pb.ScanResult
	Chart  *chart
}

type chart struct {
	Kind   string   `json:"kind"`
	Unit   string   `json:"unit"`
	XLabel string   `json:"xLabel,omitempty"`
	X      []int64  `json:"x"`
	Labels []string `json:"labels,omitempty"`
	Series []series `json:"series"`
	Height int      `json:"height,omitempty"`
}

type series struct {
	Label  string     `json:"label"`
	Values []*float64 `json:"values"`
}

func loadScan(ctx context.Context, v *View) (any, error) {
	n, m, err := v.nodeAndMaintenance(ctx)
	if err != nil {
		return nil, err
	}
	in, err := m.Scan(ctx, &pb.ScanRequest{Last: true})
	if err != nil {
		return nil, err
	}
	d := &scanView{Node: n}
	d.Result, err = result(in, func(*pb.Progress) {}, (*pb.ScanResponse).GetResult)
	if err != nil {
		return nil, err
	}
	if d.Result.GetCurrent() == 0 {
		d.Result = nil // the node has no result of a scan
		return d, nil
	}
	d.Chart = histogram(d.Result.GetHistogram())
	return d, nil
}

func histogram(buckets []*pb.SizeBucket) *chart {
	c := &chart{Kind: "bars", Unit: "number", XLabel: "size up to", Series: []series{{Label: "messages"}}}
	for i, b := range buckets {
		count := float64(b.GetMessages())
		c.X = append(c.X, int64(i))
		c.Labels = append(c.Labels, formatBytes(b.GetToBytes()))
		c.Series[0].Values = append(c.Series[0].Values, &count)
	}
	return c
}

// Share returns the size of a candidate as a percentage of the largest candidate.
func (d *scanView) Share(c *pb.PageSizeCandidate) int {
	var most uint64
	for _, other := range d.Result.GetCandidates() {
		most = max(most, other.GetFileBytes())
	}
	return percent(c.GetFileBytes(), most)
}

// Waste returns the percentage of a candidate's file that would contain no messages.
func (*scanView) Waste(c *pb.PageSizeCandidate) string {
	return fmt.Sprintf("%d %%", percent(c.GetWasteBytes(), c.GetFileBytes()))
}
