// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package soak

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
)

// quantities contains the names of the quantities that must not grow, in the order of the columns. For a quantity of a
// node, the larger value of the two nodes counts.
var quantities = []string{ // a table
	"resident_bytes", "goroutines", "open_files", "data_files", "log_bytes", "page_bytes", "coordinator_bytes",
}

// sample contains the values of all quantities at one time.
type sample struct {
	at     time.Duration
	values map[string]float64
}

// sampler reads the quantities from the process metrics of the nodes and from their directories.
type sampler struct {
	t       *testing.T
	p       *cluster.Pair
	metrics map[string]string // addresses of the nodes' metrics, by node name
	began   time.Time
	samples []sample
	csv     *csv.Writer
}

func newSampler(t *testing.T, p *cluster.Pair, metrics map[string]string, path string) *sampler {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	w := csv.NewWriter(f)
	t.Cleanup(func() {
		w.Flush()
		require.NoError(t, w.Error())
		require.NoError(t, f.Close())
	})
	require.NoError(t, w.Write(append([]string{"seconds"}, quantities...)))
	return &sampler{t: t, p: p, metrics: metrics, began: time.Now(), csv: w}
}

// take reads all quantities. Both nodes must be running.
func (s *sampler) take() {
	s.t.Helper()
	values := make(map[string]float64)
	atLeast := func(name string, v float64) { values[name] = max(values[name], v) }
	for _, n := range s.p.Nodes() {
		m := s.scrape(s.metrics[n.Name])
		atLeast("resident_bytes", m["process_resident_memory_bytes"])
		atLeast("goroutines", m["go_goroutines"])
		atLeast("open_files", m["process_open_fds"])
		files, _ := s.tree(n.DataDir(), func(string) bool { return true })
		atLeast("data_files", files)
		_, log := s.tree(filepath.Join(n.DataDir(), "log"), func(string) bool { return true })
		atLeast("log_bytes", log)
		_, page := s.tree(n.DataDir(), func(path string) bool { return filepath.Base(path) == "page.db" })
		atLeast("page_bytes", page)
		_, raft := s.tree(filepath.Join(n.DataDir(), "raft"), func(string) bool { return true })
		atLeast("coordinator_bytes", raft)
	}
	_, etcd := s.tree(filepath.Join(filepath.Dir(s.p.A.Dir), "etcd"), func(string) bool { return true })
	atLeast("coordinator_bytes", etcd)
	one := sample{at: time.Since(s.began), values: values}
	s.samples = append(s.samples, one)
	row := []string{strconv.Itoa(int(one.at.Seconds()))}
	for _, name := range quantities {
		row = append(row, strconv.FormatFloat(values[name], 'f', 0, 64))
	}
	require.NoError(s.t, s.csv.Write(row))
	s.csv.Flush()
}

// scrape returns the values of the metrics without labels.
func (s *sampler) scrape(address string) map[string]float64 {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	require.NoError(s.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(s.t, http.StatusOK, resp.StatusCode)
	values := make(map[string]float64)
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, text, found := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(text, 64); found && err == nil {
			values[name] = v
		}
	}
	require.Contains(s.t, values, "process_open_fds")
	return values
}

// tree returns the number and the disk space of the wanted files below a directory. Files may change concurrently.
func (s *sampler) tree(dir string, wanted func(path string) bool) (files, bytes float64) {
	s.t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() && wanted(path) {
			files++
			bytes += allocated(info)
		}
		return nil
	})
	require.NoError(s.t, err)
	return files, bytes
}

// between returns the median of a quantity over a range of the samples. The limits of the range are fractions of all
// samples.
func (s *sampler) between(name string, from, to float64) float64 {
	n := float64(len(s.samples))
	part := s.samples[int(n*from):max(int(n*to), int(n*from)+1)]
	values := make([]float64, 0, len(part))
	for _, one := range part {
		values = append(values, one.values[name])
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// table returns, as text, the median of each quantity in each quarter of the test, and the ratio of the fourth to the
// second quarter.
func (s *sampler) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d samples in %v\n%-18s %14s %14s %14s %14s %8s\n", len(s.samples),
		time.Since(s.began).Round(time.Second), "median of", "1st quarter", "2nd", "3rd", "4th", "4th/2nd")
	for _, name := range quantities {
		fmt.Fprintf(&b, "%-18s", name)
		for q := range 4 {
			fmt.Fprintf(&b, " %14.0f", s.between(name, float64(q)/4, float64(q+1)/4))
		}
		fmt.Fprintf(&b, " %8.2f\n", s.growth(name))
	}
	return b.String()
}

// growth returns the ratio of the median in the last quarter to the median in the second quarter. The first quarter is
// ignored, because caches fill during this time.
func (s *sampler) growth(name string) float64 {
	return s.between(name, 0.75, 1) / max(s.between(name, 0.25, 0.5), 1)
}
