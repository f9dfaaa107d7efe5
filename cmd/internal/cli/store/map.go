// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

type pageMap struct {
	Store    string       `json:"store"`
	PageSize uint32       `json:"page_size"`
	FreeTail uint64       `json:"free_tail"`
	Readers  uint32       `json:"readers"`
	Total    pageRegion   `json:"total"`
	Regions  []pageRegion `json:"regions"`
}

type pageRegion struct {
	FirstPage      uint64 `json:"first_page"`
	Pages          uint64 `json:"pages"`
	Messages       uint64 `json:"messages"`
	Index          uint64 `json:"index"`
	Bitmap         uint64 `json:"bitmap"`
	HeldCheckpoint uint64 `json:"held_checkpoint"`
	HeldReader     uint64 `json:"held_reader"`
	Free           uint64 `json:"free"`
}

func newPageRegion(r *pb.PageRegion) pageRegion {
	return pageRegion{
		FirstPage: r.GetFirstPage(), Pages: r.GetPages(), Messages: r.GetMessages(), Index: r.GetIndex(),
		Bitmap: r.GetBitmap(), HeldCheckpoint: r.GetHeldCheckpoint(), HeldReader: r.GetHeldReader(), Free: r.GetFree(),
	}
}

func mapCommand(env *cli.Env) *cobra.Command {
	var w location
	var regions uint32
	cmd := &cobra.Command{
		Use: "map", Short: "Show page file usage of a running node",
		Long: `Show the usage of page.db of a running node by region, from the start to the end of the file. The letter of
a region shows its most frequent use. A lower-case letter means that the region also has free or reserved pages.
Reserved pages were freed, but a checkpoint or a reader, such as a backup, can still use them.

To release free pages at the end, use lockstep store shrink. To remove free pages between others, use lockstep store
compact.`,
		Example: `  lockstep store map
  lockstep store map --node active --regions 1024
  lockstep store map --node a --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onNode(cmd.Context(), env, w.node, func(ctx context.Context, t target) error {
				ctx, cancel := context.WithTimeout(ctx, env.Timeout)
				defer cancel()
				m, err := t.PageMap(ctx, regions)
				if err != nil {
					return err
				}
				return printMap(env.Print, t.label(), m)
			})
		},
	}
	w.register(cmd, false)
	cmd.Flags().Uint32Var(&regions, "regions", 256, "maximum number of regions, up to 4096")
	return cmd
}

const mapLine = 64

func printMap(p *output.Printer, label string, m *pb.GetPageMapResponse) error {
	j := pageMap{
		Store: label, PageSize: m.GetPageSize(), FreeTail: m.GetFreeTail(), Readers: m.GetReaders(),
		Total: newPageRegion(m.GetTotal()), Regions: []pageRegion{},
	}
	for _, r := range m.GetRegions() {
		j.Regions = append(j.Regions, newPageRegion(r))
	}
	if p.JSON() {
		return p.Object(j)
	}
	if len(j.Regions) == 0 {
		return p.Sentence("%s: page.db has no pages yet", label)
	}
	size := uint64(j.PageSize)
	err := p.Sentence("%s: %s pages of %s; one letter represents %s pages, %s", label, output.Count(j.Total.Pages),
		output.Bytes(size), output.Count(j.Regions[0].Pages), output.Bytes(j.Regions[0].Pages*size))
	if err != nil {
		return err
	}
	for at := 0; at < len(j.Regions); at += mapLine {
		line := &strings.Builder{}
		for _, r := range j.Regions[at:min(at+mapLine, len(j.Regions))] {
			line.WriteByte(r.letter())
		}
		if err := p.Sentence("%12s  %s", output.Count(j.Regions[at].FirstPage), line); err != nil {
			return err
		}
	}
	return p.Table([]string{"", "Use", ">Pages", ">Size"}, j.rows())
}

func (m *pageMap) rows() [][]any {
	size, t := uint64(m.PageSize), &m.Total
	row := func(letter, label string, pages uint64) []any {
		return []any{letter, label, output.Count(pages), output.Bytes(pages * size)}
	}
	return [][]any{
		row("M", "messages", t.Messages), row("I", "index", t.Index), row("B", "bitmap of used pages", t.Bitmap),
		row("C", "freed, reserved for a checkpoint", t.HeldCheckpoint),
		row("R", fmt.Sprintf("freed, reserved for readers (%d now)", m.Readers), t.HeldReader),
		row(".", "free", t.Free), row("", "free at the end", m.FreeTail),
	}
}

// letter returns the letter of the most frequent use, in lower case if the region also has free or reserved pages.
func (r *pageRegion) letter() byte {
	most, letter := uint64(0), byte('.')
	for _, of := range []struct {
		pages  uint64
		letter byte
	}{{r.Messages, 'M'}, {r.Index, 'I'}, {r.Bitmap, 'B'}, {r.HeldCheckpoint, 'C'}, {r.HeldReader, 'R'}, {r.Free, '.'}} {
		if of.pages > most {
			most, letter = of.pages, of.letter
		}
	}
	if letter != '.' && r.Free+r.HeldCheckpoint+r.HeldReader > 0 && letter != 'C' && letter != 'R' {
		letter += 'a' - 'A'
	}
	return letter
}
