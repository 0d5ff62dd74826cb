//! Static checks of an expression: known names and bounded work.
//!
//! Expressions come from files that others may write, and the agent evaluates them on its only thread. So a check
//! bounds their work before the first evaluation. Work is the number of evaluated nodes, times the rounds of
//! enclosing loops, plus the size of every value that an operator may traverse.

use cel::common::{
    ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr},
    types::CelString,
    value::CowVal,
};

use super::language::{FUNCTIONS, MACROS, environment};

/// Deepest nesting. A level uses some 40 KiB of stack in debug builds, and a thread may have 2 MiB. Long
/// chains of `&&` and `||` become balanced trees, which nest little.
const MAX_DEPTH: usize = 24;

/// Maximum work: some tenths of a second. DRA's cost limit is the same number in other units.
const MAX_WORK: u64 = 1_000_000;

/// Assumed size of all attributes and capacities of one device, in bytes with names. GPUs have about half.
const DEVICE_SIZE: u64 = 2_048;

/// Assumed number of attributes and capacities of one device: twice the limit of DRA.
const DEVICE_ITEMS: u64 = 64;

/// Longest text of a converted number, in bytes.
const NUMBER_SIZE: u64 = 512;

/// Work to compile a regular expression. Large repetitions cost more.
const PATTERN_WORK: u64 = 10_000;

/// Functions that read only booleans.
const LOGIC_FUNCTIONS: [&str; 4] = ["_&&_", "_||_", "!_", "@not_strictly_false"];

/// Functions that return a boolean.
const BOOLEAN_FUNCTIONS: &[&str] = &[
    "_==_",
    "_!=_",
    "_<_",
    "_<=_",
    "_>_",
    "_>=_",
    "@in",
    "contains",
    "endsWith",
    "hasValue",
    "isGreaterThan",
    "isInteger",
    "isLessThan",
    "isQuantity",
    "isSemver",
    "matches",
    "startsWith",
];

/// CEL type names.
const TYPES: &[&str] =
    &["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// A check error, with the name in the expression that it concerns.
#[derive(Debug)]
pub(super) struct CheckError {
    pub(super) problem: String,
    pub(super) name: Option<String>,
}

/// Checks an expression over a `device` with these fields.
pub(super) fn check(
    expression: &IdedExpr,
    fields: &'static [&'static str],
) -> Result<(), CheckError> {
    let Cost { work, .. } = CostEstimator { fields, scope: Vec::new() }.estimate(expression, 0)?;
    if work > MAX_WORK {
        return check_error(format!(
            "it may take {work} steps for one device and {MAX_WORK} are allowed: nest fewer loops"
        ));
    }
    Ok(())
}

/// Upper bounds on an expression's evaluation and on its value, saturating.
#[derive(Clone, Copy)]
struct Cost {
    /// Evaluation steps.
    work: u64,
    /// Bytes of the value, nested values included.
    size: u64,
    /// Number of values in the value, itself included: an upper bound of loop rounds.
    items: u64,
}

/// State of the check: fields of `device`, and loop variables in scope with their bounds.
struct CostEstimator<'a> {
    fields: &'static [&'static str],
    scope: Vec<(&'a str, Cost)>,
}

// === impl CostEstimator ===

impl<'a> CostEstimator<'a> {
    fn estimate(&mut self, node: &'a IdedExpr, depth: usize) -> Result<Cost, CheckError> {
        if depth > MAX_DEPTH {
            return check_error(format!("it nests deeper than {MAX_DEPTH} levels"));
        }
        match &node.expr {
            Expr::Literal(literal) => Ok(Cost::leaf(size(literal))),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => self.select(select, depth),
            Expr::List(list) => self.sum(list.elements.iter(), depth),
            Expr::Map(map) => {
                let entries = map.entries.iter().filter_map(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) => Some([&entry.key, &entry.value]),
                    EntryExpr::StructField(_) => None,
                });
                self.sum(entries.flatten(), depth)
            }
            Expr::Call(call) => self.call(call, depth),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, depth),
            Expr::Struct(_) | Expr::Unspecified => {
                check_error("it makes a value of an unsupported type")
            }
        }
    }

    fn sum(
        &mut self,
        nodes: impl Iterator<Item = &'a IdedExpr>,
        depth: usize,
    ) -> Result<Cost, CheckError> {
        let mut sum = Cost::leaf(1);
        for node in nodes {
            sum = sum.and(self.estimate(node, depth + 1)?);
        }
        Ok(sum)
    }

    fn variable(&self, name: &str) -> Result<Cost, CheckError> {
        if let Some((_, cost)) = self.scope.iter().rev().find(|(other, _)| *other == name) {
            return Ok(*cost);
        }
        match name {
            "device" => Ok(Cost { work: 1, size: DEVICE_SIZE, items: DEVICE_ITEMS }),
            _ if TYPES.contains(&name) => Ok(Cost::leaf(1)),
            _ => check_error_at(name, format!("unknown variable {name:?}: use \"device\"")),
        }
    }

    fn select(&mut self, select: &'a SelectExpr, depth: usize) -> Result<Cost, CheckError> {
        let is_of_device = matches!(&select.operand.expr, Expr::Ident(name) if name == "device");
        if is_of_device && !self.fields.contains(&select.field.as_str()) && !self.is_shadowed() {
            let fields = self.fields.join(", ");
            let problem = format!("device has no {:?}: there are {fields}", select.field);
            return check_error_at(&select.field, problem);
        }
        Ok(self.estimate(&select.operand, depth + 1)?.and(Cost { work: 1, ..Cost::NONE }))
    }

    fn is_shadowed(&self) -> bool {
        self.scope.iter().any(|(name, _)| *name == "device")
    }

    fn call(&mut self, call: &'a CallExpr, depth: usize) -> Result<Cost, CheckError> {
        let name = call.func_name.as_str();
        let is_operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
        if !is_operator && !FUNCTIONS.contains(&name) {
            let functions = [FUNCTIONS, &MACROS[..]].concat().join(", ");
            return check_error_at(
                name,
                format!("there is no function {name:?}; there are {functions}"),
            );
        }
        if let ("matches", Some(pattern)) = (name, call.args.last()) {
            check_pattern(pattern)?;
        }
        let inputs = self.sum(call.target.as_deref().into_iter().chain(&call.args), depth)?;
        let traversal_work = match name {
            "matches" => PATTERN_WORK,
            _ if LOGIC_FUNCTIONS.contains(&name) => 0,
            _ => inputs.size,
        };
        let work = inputs.work.saturating_add(traversal_work);
        if LOGIC_FUNCTIONS.contains(&name) || BOOLEAN_FUNCTIONS.contains(&name) {
            return Ok(Cost { work, ..Cost::leaf(1) });
        }
        Ok(Cost { work, size: inputs.size.saturating_add(NUMBER_SIZE), ..inputs })
    }

    /// Macros only append to their accumulator, so each round adds at most one round's size.
    fn comprehension(
        &mut self,
        comprehension: &'a ComprehensionExpr,
        depth: usize,
    ) -> Result<Cost, CheckError> {
        let range = self.estimate(&comprehension.iter_range, depth + 1)?;
        let initial = self.estimate(&comprehension.accu_init, depth + 1)?;
        let outer_scope_len = self.scope.len();
        let item = Cost { work: 1, ..range };
        self.scope.push((&comprehension.accu_var, Cost { work: 1, ..Cost::NONE }));
        self.scope.push((&comprehension.iter_var, item));
        self.scope.extend(comprehension.iter_var2.as_deref().map(|name| (name, item)));
        let loop_nodes = [&comprehension.loop_cond, &comprehension.loop_step];
        let round = self.sum(loop_nodes.into_iter(), depth)?;
        let result = self.estimate(&comprehension.result, depth + 1)?;
        self.scope.truncate(outer_scope_len);
        let range_cost = Cost { work: range.work, ..Cost::NONE };
        Ok(range_cost.and(initial).and(round.times(range.items)).and(result))
    }
}

// === impl Cost ===

impl Cost {
    const NONE: Self = Self { work: 0, size: 0, items: 0 };

    fn leaf(size: u64) -> Self {
        Self { work: 1, size, items: 1 }
    }

    fn and(self, other: Self) -> Self {
        Self {
            work: self.work.saturating_add(other.work),
            size: self.size.saturating_add(other.size),
            items: self.items.saturating_add(other.items),
        }
    }

    fn times(self, rounds: u64) -> Self {
        Self {
            work: self.work.saturating_mul(rounds),
            size: self.size.saturating_mul(rounds),
            items: self.items.saturating_mul(rounds),
        }
    }
}

// === impl CheckError ===

impl CheckError {
    /// The problem with line and column of the name.
    pub(super) fn with_position(&self, text: &str) -> String {
        let position = self.name.as_deref().and_then(|name| position_of(text, name));
        match position {
            Some((line, column)) => super::with_position(line, column, &self.problem),
            None => self.problem.clone(),
        }
    }
}

/// Compiles a literal regular expression by matching empty text.
fn check_pattern(pattern: &IdedExpr) -> Result<(), CheckError> {
    let Expr::Literal(LiteralValue::String(text)) = &pattern.expr else { return Ok(()) };
    let arguments = vec![CowVal::owned(CelString::from("")), CowVal::owned(text.clone())];
    let matches = environment().find_overload("matches", &arguments);
    match matches.expect("one of CEL's own functions")(arguments) {
        Ok(_) => Ok(()),
        Err(error) => check_error(error.to_string()),
    }
}

fn size(literal: &LiteralValue) -> u64 {
    let length = match literal {
        LiteralValue::String(text) => text.inner().len(),
        LiteralValue::Bytes(bytes) => bytes.inner().len(),
        _ => 0,
    };
    1 + length as u64
}

fn check_error<T>(problem: impl Into<String>) -> Result<T, CheckError> {
    Err(CheckError { problem: problem.into(), name: None })
}

fn check_error_at<T>(name: &str, problem: String) -> Result<T, CheckError> {
    Err(CheckError { problem, name: Some(name.to_owned()) })
}

/// Line and column of a whole word outside quotes, from 1.
pub(super) fn position_of(text: &str, name: &str) -> Option<(usize, usize)> {
    let is_word_character = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (start, _) = text.match_indices(name).find(|(start, _)| {
        let (before, after) = (&text[..*start], &text[start + name.len()..]);
        !before.ends_with(is_word_character)
            && !after.starts_with(is_word_character)
            && !is_quoted(before)
    })?;
    let line_start = text[..start].rfind('\n').map_or(0, |end| end + 1);
    Some((text[..start].matches('\n').count() + 1, text[line_start..start].chars().count() + 1))
}

/// True if the text ends inside quotes.
fn is_quoted(before: &str) -> bool {
    let (mut quote, mut escaped) = (None, false);
    for c in before.chars() {
        match quote {
            None if c == '"' || c == '\'' => quote = Some(c),
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(opening) if c == opening => quote = None,
            _ => {}
        }
    }
    quote.is_some()
}
