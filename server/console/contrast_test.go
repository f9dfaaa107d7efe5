// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/console"
)

var variable = regexp.MustCompile(`--([a-z0-9-]+):\s*(#[0-9a-f]{6})`)

// colours returns the color variables in a block of the style sheet.
func colours(t *testing.T, block string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, m := range variable.FindAllStringSubmatch(block, -1) {
		all[m[1]] = m[2]
	}
	require.Greater(t, len(all), 20)
	return all
}

// themes returns the colors of the light and dark themes. The dark theme is defined twice: for the system setting and
// for the user's choice.
func themes(t *testing.T) map[string]map[string]string {
	t.Helper()
	css := console.Asset("console.css")
	light, rest, ok := strings.Cut(css, "@media (prefers-color-scheme: dark)")
	require.True(t, ok)
	system, chosen, ok := strings.Cut(rest, `:root[data-theme="dark"]`)
	require.True(t, ok)
	chosen, _, ok = strings.Cut(chosen, "}")
	require.True(t, ok)
	require.Equal(t, colours(t, system), colours(t, chosen))
	return map[string]map[string]string{"light": colours(t, light), "dark": colours(t, system)}
}

// luminance returns the relative luminance of a color, as defined in WCAG 2.2.
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	var sum float64
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[1+2*i:3+2*i], 16, 8)
		require.NoError(t, err)
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	la, lb := luminance(t, a), luminance(t, b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

// The colors have the contrast that WCAG AA requires: 4.5:1 for text, and 3:1 for graphics and the borders of
// controls.
func TestContrast(t *testing.T) {
	const text, mark = 4.5, 3
	require.InDelta(t, 21, contrast(t, "#000000", "#ffffff"), 0.01)
	pairs := []struct {
		on, ink string
		least   float64
	}{
		{"accent", "accent-ink", text},
		{"bad", "bad-ink", text},
		{"good-bg", "good", text},
		{"info-bg", "info", text},
		{"warn-bg", "warn", text},
		{"bad-bg", "bad", text},
		{"good-bg", "text", text},
		{"info-bg", "text", text},
		{"warn-bg", "text", text},
		{"bad-bg", "text", text},
		{"info-bg", "link", text},
		{"bad-bg", "link", text},
		{"warn-bg", "link", text},
		{"info-bg", "muted", text},
		{"text", "ground", text},
		{"line", "accent", 2},
		{"panel", "bad", text},
		{"ground", "bad", text},
	}
	for _, on := range []string{"ground", "panel", "panel-2"} {
		for _, ink := range []string{"text", "muted", "link"} {
			pairs = append(pairs, struct {
				on, ink string
				least   float64
			}{on, ink, text})
		}
		for _, ink := range []string{"mark", "focus", "accent", "good", "warn", "bad", "info"} {
			pairs = append(pairs, struct {
				on, ink string
				least   float64
			}{on, ink, mark})
		}
	}
	for i := 1; i <= 4; i++ {
		pairs = append(pairs, struct {
			on, ink string
			least   float64
		}{"panel", "chart-" + strconv.Itoa(i), mark})
	}
	for theme, c := range themes(t) {
		for _, p := range pairs {
			require.NotEmpty(t, c[p.on], p.on)
			require.NotEmpty(t, c[p.ink], p.ink)
			require.GreaterOrEqual(t, contrast(t, c[p.on], c[p.ink]), p.least, "%s: %s %s on %s %s", theme, p.ink, c[p.ink],
				p.on, c[p.on])
		}
	}
}
