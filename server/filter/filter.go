// SPDX-License-Identifier: Apache-2.0

// Package filter decides which messages a subscription or a consumer gets, by an expression in CEL, the Common
// Expression Language (https://cel.dev).
//
// An expression sees what a message has besides its body:
//
//	properties      map(string, dyn)  a property keeps its type: string, bool, int, double or bytes
//	message_id, correlation_id, reply_to, content_type, subject, group
//	                string            "" if the message has none
//	priority        int               4 if it has none
//	published_at    timestamp         when the active node accepted the message
//	expires_at      timestamp         the end of the year 9999 if it does not expire
//	deliver_at      timestamp         published_at if it is not delayed
//	size            int               bytes of the body
//
// It must give a bool. Where it gives an error for a message, as for a property that the message does not have, the
// message does not match. What an expression gives depends on nothing but the message: no clock, no state.
//
// The package knows records of messages and neither gRPC nor subscriptions.
package filter

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"

	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// MaxBytes is the greatest length of an expression.
	MaxBytes = txn.MaxFilterBytes
	// MaxCost is the greatest cost of one evaluation, in CEL's units: about one for each step, and one for each ten
	// bytes of text that is looked at. A message for which an evaluation costs more does not match.
	MaxCost = 100_000
	// MaxEstimate is the greatest cost that an expression may have at worst, by an estimate made when it is compiled.
	MaxEstimate = 10 * MaxCost

	// maxNodes and maxDepth bound what is parsed, maxRegex the size of a compiled regular expression.
	maxNodes = 2000
	maxDepth = 50
	maxRegex = 10_000
	// maxLoops is how deep comprehensions (all, exists, map, filter) may stand in each other.
	maxLoops = 1
)

// ErrInvalid is returned by Compile for a text that is no filter. The error names the place in it and CEL's reason.
var ErrInvalid = errors.New("invalid filter")

// Filter is a compiled expression. It is safe for concurrent use.
type Filter struct {
	text        string
	program     cel.Program
	activations sync.Pool // of *activation
}

// environment is what expressions are compiled in: made at first use, since it takes some milliseconds.
var environment = sync.OnceValues(newEnvironment) //nolint:gochecknoglobals // computed once and never changed

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
		return nil, fmt.Errorf("make CEL's environment: %w", err)
	}
	return env, nil
}

// Compile compiles an expression. The error wraps ErrInvalid: it says where the expression is wrong (line:column, both
// from 1) and why, or which limit it breaks.
func Compile(text string) (*Filter, error) {
	switch {
	case strings.TrimSpace(text) == "":
		return nil, fmt.Errorf("%w: it is empty; leave it out to get all messages", ErrInvalid)
	case len(text) > MaxBytes:
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrInvalid, len(text), MaxBytes)
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("%w: it is not UTF-8", ErrInvalid)
	}
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, refusal(issues)
	}
	// What a property is shows when a message is there: one that is no bool does not match.
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("%w: 1:1: it gives %s, and must give bool; compare it with something", ErrInvalid, t)
	}
	cost, err := env.EstimateCost(ast, estimator{usualProperties})
	if err != nil {
		return nil, fmt.Errorf("%w: estimate its cost: %w", ErrInvalid, err)
	}
	if cost.Max > MaxEstimate {
		return nil, fmt.Errorf("%w: it can cost too much (%d, the limit is %d, in CEL's units): go through `properties` "+
			"only once, and name the properties that matter instead", ErrInvalid, cost.Max, uint64(MaxEstimate))
	}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	if worst, err := env.EstimateCost(ast, estimator{maxProperties}); err != nil || worst.Max > MaxCost {
		options = append(options, cel.CostLimit(MaxCost))
	} // otherwise no message can make it so expensive, and counting would only cost time
	program, err := env.Program(ast, options...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return &Filter{text: text, program: program, activations: sync.Pool{New: func() any { return new(activation) }}}, nil
}

// refusal says where an expression is wrong, and why. Only the first error is told: the others often follow from it.
func refusal(issues *cel.Issues) error {
	all := issues.Errors()
	if len(all) == 0 {
		return fmt.Errorf("%w: %w", ErrInvalid, issues.Err())
	}
	first := all[0]
	// One line, in which a text of the client's is kept short.
	message := strings.Join(strings.Fields(first.Message), " ")
	if len(message) > maxReasonBytes {
		message = strings.ToValidUTF8(message[:maxReasonBytes], "") + "…"
	}
	return fmt.Errorf("%w: %d:%d: %s", ErrInvalid, max(first.Location.Line(), 1), max(first.Location.Column(), 0)+1,
		message)
}

// maxReasonBytes bounds the reason in an error.
const maxReasonBytes = 400

// Text is the expression.
func (f *Filter) Text() string { return f.text }

// Match tells whether a stored message matches. A message that cannot be decoded matches: it is for others to say so.
func (f *Filter) Match(record []byte) bool {
	m, err := txn.DecodeMessage(record)
	if err != nil {
		return true
	}
	a, _ := f.activations.Get().(*activation)
	defer f.activations.Put(a)
	a.begin(record, &m)
	defer a.end()
	result, _, err := f.program.Eval(a)
	if err != nil {
		return false
	}
	matches, is := result.Value().(bool)
	return is && matches
}
