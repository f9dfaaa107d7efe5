// SPDX-License-Identifier: Apache-2.0

// Package filter implements message filters for subscriptions, consumers and searches. A filter is an expression
// in CEL, the Common Expression Language (https://cel.dev).
//
// An expression can use all parts of a message except the body. A search expression can also use the body:
//
//	properties      map(string, dyn)  a property keeps its type: string, bool, int, double or bytes
//	message_id, correlation_id, reply_to, content_type, subject, group
//	                string            "" if unset
//	priority        int               4 if unset
//	published_at    timestamp         when the active node accepted the message
//	expires_at      timestamp         the end of the year 9999 if the message does not expire
//	deliver_at      timestamp         published_at if the message is not delayed
//	size            int               size of the body in bytes
//	body            dyn               value of a JSON body; null for other bodies and bodies that exceed a JSON limit
//
// The result of an expression must be a bool. A message does not match if the evaluation fails, for example
// because a property is missing. The result depends only on the message: an expression cannot access a clock or
// other state.
package filter

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/interpreter"

	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// MaxBytes is the maximum size of an expression in bytes.
	MaxBytes = txn.MaxFilterBytes
	// MaxCost is the maximum cost of one evaluation, in CEL's units: about one per step, and one per ten bytes of text
	// read. If an evaluation exceeds the cost, the message does not match.
	MaxCost = 100_000
	// MaxSearchCost is the maximum cost of one evaluation of a search expression.
	MaxSearchCost = 250_000
	// MaxEstimate is the maximum cost of an expression, as estimated at compile time. The estimate assumes a message with
	// usualProperties properties and usualValues values in the body.
	MaxEstimate = 10 * MaxCost

	// Limits of the parsed expression, and of a compiled regular expression.
	maxNodes = 2000
	maxDepth = 50
	maxRegex = 10_000
	maxLoops = 1
)

// ErrInvalid is wrapped by the errors of Compile and CompileSearch for invalid expressions.
var ErrInvalid = errors.New("invalid filter")

// Filter is a compiled expression. It is safe for concurrent use.
type Filter struct {
	text        string
	program     cel.Program
	uses        uses
	screen      *screen   // nil if the expression has no screen
	activations sync.Pool // of *activation
}

// The environments are created on first use, because the creation takes a few milliseconds.
//
//nolint:gochecknoglobals // computed once and never changed
var (
	environment       = sync.OnceValues(newEnvironment)
	searchEnvironment = sync.OnceValues(newSearchEnvironment)
)

func newSearchEnvironment() (*cel.Env, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	if env, err = env.Extend(cel.Variable(varBody, cel.DynType)); err != nil {
		return nil, fmt.Errorf("create the CEL environment for searches: %w", err)
	}
	return env, nil
}

func newEnvironment() (*cel.Env, error) {
	options := []cel.EnvOption{
		cel.Variable(varProperties, cel.MapType(cel.StringType, cel.DynType)),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(MaxBytes),
		cel.ParserRecursionLimit(maxDepth),
		cel.ExpressionNodeLimit(maxNodes),
		cel.RegexProgramSizeLimit(maxRegex),
		cel.ASTValidators(
			cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(),
			cel.ValidateComprehensionNestingLimit(maxLoops),
		),
	}
	for name := range textNames {
		options = append(options, cel.Variable(name, cel.StringType))
	}
	for _, name := range [...]string{varPriority, varSize} {
		options = append(options, cel.Variable(name, cel.IntType))
	}
	for _, name := range [...]string{varPublishedAt, varExpiresAt, varDeliverAt} {
		options = append(options, cel.Variable(name, cel.TimestampType))
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, fmt.Errorf("create the CEL environment: %w", err)
	}
	return env, nil
}

// Compile compiles an expression. Errors for invalid expressions wrap ErrInvalid and contain the reason. For syntax
// and type errors, they also contain the position (line:column, both counted from 1).
func Compile(text string) (*Filter, error) { return compile(text, environment, MaxCost) }

// CompileSearch is like Compile, but the expression can also use the body.
func CompileSearch(text string) (*Filter, error) {
	return compile(text, searchEnvironment, MaxSearchCost)
}

func compile(text string, environment func() (*cel.Env, error), maxCost uint64) (*Filter, error) {
	switch {
	case strings.TrimSpace(text) == "":
		return nil, fmt.Errorf("%w: empty; omit the filter to receive all messages", ErrInvalid)
	case len(text) > MaxBytes:
		return nil, fmt.Errorf("%w: has %d bytes, maximum is %d", ErrInvalid, len(text), MaxBytes)
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("%w: not UTF-8", ErrInvalid)
	}
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, refusal(issues)
	}
	// The type of a property is known only at evaluation. A message does not match if the result is not a bool.
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("%w: 1:1: result type is %s, must be bool; add a comparison", ErrInvalid, t)
	}
	cost, err := env.EstimateCost(ast, estimator{usualProperties, usualValues})
	if err != nil {
		return nil, fmt.Errorf("%w: estimate the cost: %w", ErrInvalid, err)
	}
	if cost.Max > MaxEstimate {
		return nil, fmt.Errorf("%w: estimated cost is %d, maximum is %d (CEL cost units): iterate over `properties` "+
			"or a list only once, or access values by name", ErrInvalid, cost.Max, uint64(MaxEstimate))
	}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	if worst, err := env.EstimateCost(ast, estimator{maxProperties, MaxJSONBytes}); err != nil || worst.Max > maxCost {
		options = append(options, cel.CostLimit(maxCost))
	} // without a limit, the cost is not tracked, because no message can exceed the limit
	program, err := env.Program(ast, options...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	f := &Filter{text: text, program: program}
	f.uses.collect(ast.NativeRep().Expr())
	if s, ok := newScreen(ast.NativeRep().Expr(), &f.uses); ok {
		f.screen = &s
	}
	f.activations.New = func() any { return &activation{uses: &f.uses} }
	return f, nil
}

func refusal(issues *cel.Issues) error {
	all := issues.Errors()
	if len(all) == 0 {
		return fmt.Errorf("%w: %w", ErrInvalid, issues.Err())
	}
	first := all[0]
	// The message may contain client text: convert it to a single line of limited length.
	message := strings.Join(strings.Fields(first.Message), " ")
	if len(message) > maxReasonBytes {
		message = strings.ToValidUTF8(message[:maxReasonBytes], "") + "…"
	}
	return fmt.Errorf("%w: %d:%d: %s", ErrInvalid, max(first.Location.Line(), 1), max(first.Location.Column(), 0)+1,
		message)
}

const maxReasonBytes = 400

// Text returns the expression.
func (f *Filter) Text() string { return f.text }

// Result is the result of an evaluation.
type Result uint8

// Results of Filter.Evaluate.
const (
	NoMatch Result = iota
	Matches
	// Unevaluated means that the evaluation exceeded a limit: the cost limit or a JSON limit. The message does not
	// match.
	Unevaluated
)

// Match reports whether a stored message matches. A message that cannot be decoded matches.
func (f *Filter) Match(record []byte) bool {
	r, err := f.Evaluate(record)
	return r == Matches || err != nil
}

// Evaluate evaluates the expression for a stored message. It returns an error if the message cannot be decoded.
func (f *Filter) Evaluate(record []byte) (Result, error) {
	a, _ := f.activations.Get().(*activation)
	defer f.activations.Put(a)
	defer a.end()
	if err := a.begin(record); err != nil {
		return NoMatch, err
	}
	if f.screen != nil && !f.screen.possible(a) {
		return a.noMatch(nil), nil
	}
	result, _, err := f.program.Eval(a)
	if err != nil {
		return a.noMatch(err), nil
	}
	if matches, is := result.Value().(bool); is && matches {
		return Matches, nil
	}
	return a.noMatch(nil), nil
}

func (a *activation) noMatch(err error) Result {
	if _, exceeded := errors.AsType[interpreter.EvalCancelledError](err); exceeded || a.document.limited {
		return Unevaluated
	}
	return NoMatch
}
