// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package console_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// bound limits the wait for any event on a page. It is long, because the machine may be busy.
const bound = 2 * time.Minute

// browser starts a headless Chromium with a new profile, which runs until the test ends.
func browser(t *testing.T, program string) context.Context {
	t.Helper()
	options := append(append([]chromedp.ExecAllocatorOption{}, chromedp.DefaultExecAllocatorOptions[:]...),
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(bound),
	)
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	require.NoError(t, chromedp.Run(ctx))
	return ctx
}

// tab is a tab of the browser.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu       sync.Mutex // guards problems
	problems []string
}

// newTab opens a tab for the console at an address.
func newTab(browser context.Context, t *testing.T, base string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, base: strings.TrimSuffix(base, "/")}
	chromedp.ListenTarget(ctx, b.listen)
	require.NoError(t, chromedp.Run(ctx)) // the tab would be closed with the context of its first run
	b.run(log.Enable(), runtime.Enable(), emulation.SetDeviceMetricsOverride(1440, 900, 1, false))
	return b
}

// listen records errors of the browser: failed scripts, and violations of the content security policy. Network errors
// and rejections by a node are shown on the page.
func (b *tab) listen(event any) {
	problem := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		problem = "exception: " + e.ExceptionDetails.Error()
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			problem = fmt.Sprintf("console.%s", e.Type)
			for _, a := range e.Args {
				problem += " " + string(a.Value) + a.Description
			}
		}
	case *log.EventEntryAdded:
		if e.Entry.Source != log.SourceNetwork &&
			(e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning) {
			problem = fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	}
	if problem == "" || strings.Contains(problem, "htmx:sendError") ||
		strings.Contains(problem, "htmx:responseError") ||
		strings.Contains(problem, "Response Status Error Code") {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, problem)
}

// requireNoErrors fails the test if the browser has reported an error.
func (b *tab) requireNoErrors() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.problems)
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	require.NoError(b.t, b.try(actions...), "%s", b.shownText())
}

func (b *tab) try(actions ...chromedp.Action) error {
	ctx, cancel := context.WithTimeout(b.ctx, bound)
	defer cancel()
	return chromedp.Run(ctx, actions...)
}

// shownText returns the page's address and text for a failure message.
func (b *tab) shownText() string {
	var at, text string
	_ = b.evaluate("location.href", &at)
	_ = b.evaluate("document.body ? document.body.innerText : ''", &text)
	return at + "\n" + text
}

func (b *tab) evaluate(script string, into any) error {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate(script, into))
}

// open navigates to a page.
func (b *tab) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.base+path), chromedp.WaitReady("main"))
}

// until waits until a script returns true, and returns the duration of the wait.
func (b *tab) until(script string) time.Duration {
	b.t.Helper()
	start := time.Now()
	for {
		var holds bool
		err := b.evaluate("Boolean("+script+")", &holds)
		if err == nil && holds {
			return time.Since(start)
		}
		if time.Since(start) > bound {
			require.FailNow(b.t, "not within "+bound.String(), "%s: %v\n%s", script, err, b.shownText())
		}
		<-time.After(20 * time.Millisecond)
	}
}

// has returns a script that reports whether the first element that matches selector contains text.
func has(selector, text string) string {
	return fmt.Sprintf("(document.querySelector(%q)||{innerText:''}).innerText.includes(%q)", selector, text)
}

// click clicks an element with a script. A mouse click could miss an element that moves, or that the page replaces.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.run(chromedp.WaitVisible(selector, chromedp.ByQuery))
	const script = "(function (e) { if (e) e.click(); return Boolean(e); })(document.querySelector(%q))"
	for found := false; !found; {
		b.run(chromedp.Evaluate(fmt.Sprintf(script, selector), &found))
	}
}

// signIn signs in with a token.
func (b *tab) signIn(token string) {
	b.t.Helper()
	b.open("/")
	b.run(chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", token+kb.Enter),
		chromedp.WaitVisible("#menu", chromedp.ByQuery))
}

// dialog opens a dialog by a click on the opener, fills in the fields, and submits the dialog. It returns the
// success message, or the error in the dialog.
func (b *tab) dialog(opener string, fields map[string]string) string {
	b.t.Helper()
	b.click(opener)
	b.run(chromedp.WaitVisible("#dialog form.dialog button[type=submit]", chromedp.ByQuery))
	for selector, value := range fields {
		b.run(chromedp.Evaluate(fmt.Sprintf("document.querySelector(%q).value = ''", "#dialog "+selector), nil),
			chromedp.SendKeys("#dialog "+selector, value, chromedp.ByQuery))
	}
	b.run(chromedp.Evaluate("document.querySelectorAll('.toast,.notice').forEach(function (e) { e.remove(); });"+
		// Keep the toast, which console.js would remove after 8 s.
		"(function (later) { window.setTimeout = function (f, ms) { "+
		"return ms === 8000 ? 0 : later.apply(window, arguments); }; })(window.setTimeout)", nil))
	b.click("#dialog form.dialog button[type=submit]")
	const outcome = "(document.querySelector('.toast')||document.querySelector('#dialog .failure')||" +
		"document.querySelector('.notice')||{innerText:''}).innerText"
	b.until(outcome)
	var text string
	b.run(chromedp.Evaluate(outcome, &text))
	return text
}

// failed reports whether the node has rejected the request of the open dialog.
func (b *tab) failed() (failed bool) {
	b.t.Helper()
	b.run(chromedp.Evaluate("Boolean(document.querySelector('#dialog .failure'))", &failed))
	return failed
}

// screenshot takes screenshots of a page at two widths and in both themes, if enabled.
func (b *tab) screenshot(directory, name, path string) {
	b.t.Helper()
	if directory == "" {
		return
	}
	for _, width := range []int64{390, 1440} {
		for _, theme := range []string{"light", "dark"} {
			b.run(emulation.SetDeviceMetricsOverride(width, 900, 1, false),
				chromedp.Evaluate(fmt.Sprintf("document.cookie = 'lockstep_theme=%s; Path=/'", theme), nil))
			b.open(path)
			b.until("!document.querySelector('.chart') || document.querySelector('.chart canvas')")
			var wide bool
			b.run(chromedp.Evaluate("document.documentElement.scrollWidth > innerWidth", &wide))
			require.False(b.t, wide, "%s at %d px is wider than the window", path, width)
			var picture []byte
			// A covered tab may not be drawn, so that its screenshot never completes.
			b.run(page.BringToFront(), chromedp.FullScreenshot(&picture, 100))
			file := filepath.Join(directory, fmt.Sprintf("%s-%d-%s.png", name, width, theme))
			require.NoError(b.t, os.WriteFile(file, picture, 0o600))
		}
	}
	b.run(emulation.SetDeviceMetricsOverride(1440, 900, 1, false))
}
