//! What can be said of an expression before there is a device: what it names, and how much work it
//! can be at most.
//!
//! An expression comes from a file that others may write, and is evaluated by the one thread of the
//! agent: so the work is bounded before the first evaluation. The bound is the number of nodes that
//! are evaluated, loops multiplied out, with the size of every value that an operator may walk.

use cel::common::{
    ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr},
    types::CelString,
    value::CowVal,
};

use super::language::{FUNCTIONS, MACROS, environment};

/// Nesting of what is evaluated. A level takes some 40 KiB of stack where the crate is not optimised,
/// and a thread may have 2 MiB. Long chains of `&&` and `||` nest little: they become balanced trees.
const MAX_DEPTH: usize = 24;

/// Some tenths of a second at the worst. DRA's limit has the same number, in units of its own.
const MAX_WORK: u64 = 1_000_000;

/// Bytes of all attributes and capacities of one device, with their names. What the agent publishes
/// of a GPU is about half of it.
const DEVICE_SIZE: u64 = 2_048;

/// Attributes and capacities of one device, as many as DRA allows twice.
const DEVICE_ITEMS: u64 = 64;

/// The longest text that a number turns into.
const NUMBER_SIZE: u64 = 512;

/// Compiling a pattern, in evaluated nodes; patterns with large repetitions take more.
const PATTERN_WORK: u64 = 10_000;

/// What looks at truth values only.
const LOGIC: [&str; 4] = ["_&&_", "_||_", "!_", "@not_strictly_false"];

/// What makes a truth value of other values.
const TRUTHS: [&str; 17] = [
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

/// Names that mean a type.
const TYPES: [&str; 10] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// What is wrong with an expression, and which name shows where.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) problem: String,
    pub(super) name: Option<String>,
}

/// Checks an expression about a device of which these fields are known.
pub(super) fn check(expression: &IdedExpr, fields: &'static [&'static str]) -> Result<(), Fault> {
    let Weight { work, .. } = Walk { fields, scope: Vec::new() }.weigh(expression, 0)?;
    if work > MAX_WORK {
        return fault(format!(
            "it may take {work} steps for one device and {MAX_WORK} are allowed: nest fewer loops"
        ));
    }
    Ok(())
}

/// Upper bounds, saturating.
#[derive(Clone, Copy)]
struct Weight {
    /// Steps of an evaluation.
    work: u64,
    /// Bytes of the value, with all that is in it.
    size: u64,
    /// Values in the value, itself included: a loop over it has no more rounds.
    items: u64,
}

/// The way through an expression: the loop variables in scope, and what they hold.
struct Walk<'a> {
    fields: &'static [&'static str],
    scope: Vec<(&'a str, Weight)>,
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn weigh(&mut self, node: &'a IdedExpr, depth: usize) -> Result<Weight, Fault> {
        if depth > MAX_DEPTH {
            return fault(format!("it nests deeper than {MAX_DEPTH} levels"));
        }
        match &node.expr {
            Expr::Literal(literal) => Ok(Weight::leaf(size(literal))),
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
            Expr::Struct(_) | Expr::Unspecified => fault("it makes a value that is not known here"),
        }
    }

    fn sum(
        &mut self,
        nodes: impl Iterator<Item = &'a IdedExpr>,
        depth: usize,
    ) -> Result<Weight, Fault> {
        let mut sum = Weight::leaf(1);
        for node in nodes {
            sum = sum.and(self.weigh(node, depth + 1)?);
        }
        Ok(sum)
    }

    fn variable(&self, name: &str) -> Result<Weight, Fault> {
        if let Some((_, held)) = self.scope.iter().rev().find(|(known, _)| *known == name) {
            return Ok(*held);
        }
        match name {
            "device" => Ok(Weight { work: 1, size: DEVICE_SIZE, items: DEVICE_ITEMS }),
            _ if TYPES.contains(&name) => Ok(Weight::leaf(1)),
            _ => named(name, format!("{name:?} is not known: there is the variable \"device\"")),
        }
    }

    fn select(&mut self, select: &'a SelectExpr, depth: usize) -> Result<Weight, Fault> {
        let of_device = matches!(&select.operand.expr, Expr::Ident(name) if name == "device");
        if of_device && !self.fields.contains(&select.field.as_str()) && !self.is_shadowed() {
            let fields = self.fields.join(", ");
            let problem = format!("device has no {:?}: there are {fields}", select.field);
            return named(&select.field, problem);
        }
        Ok(self.weigh(&select.operand, depth + 1)?.and(Weight { work: 1, ..Weight::NONE }))
    }

    fn is_shadowed(&self) -> bool {
        self.scope.iter().any(|(name, _)| *name == "device")
    }

    fn call(&mut self, call: &'a CallExpr, depth: usize) -> Result<Weight, Fault> {
        let name = call.func_name.as_str();
        let operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
        if !operator && !FUNCTIONS.contains(&name) {
            let known = [&FUNCTIONS[..], &MACROS[..]].concat().join(", ");
            return named(name, format!("there is no function {name:?}; there are {known}"));
        }
        if let ("matches", Some(pattern)) = (name, call.args.last()) {
            check_pattern(pattern)?;
        }
        let inputs = self.sum(call.target.as_deref().into_iter().chain(&call.args), depth)?;
        let walked = match name {
            "matches" => PATTERN_WORK,
            _ if LOGIC.contains(&name) => 0,
            _ => inputs.size,
        };
        let work = inputs.work.saturating_add(walked);
        if LOGIC.contains(&name) || TRUTHS.contains(&name) {
            return Ok(Weight { work, ..Weight::leaf(1) });
        }
        Ok(Weight { work, size: inputs.size.saturating_add(NUMBER_SIZE), ..inputs })
    }

    /// The macros' loops only ever add to what they accumulate, so that its size grows with each
    /// round by what one round makes of nothing.
    fn comprehension(
        &mut self,
        comprehension: &'a ComprehensionExpr,
        depth: usize,
    ) -> Result<Weight, Fault> {
        let range = self.weigh(&comprehension.iter_range, depth + 1)?;
        let initial = self.weigh(&comprehension.accu_init, depth + 1)?;
        let outer = self.scope.len();
        let item = Weight { work: 1, ..range };
        self.scope.push((&comprehension.accu_var, Weight { work: 1, ..Weight::NONE }));
        self.scope.push((&comprehension.iter_var, item));
        self.scope.extend(comprehension.iter_var2.as_deref().map(|name| (name, item)));
        let round = [&comprehension.loop_cond, &comprehension.loop_step];
        let round = self.sum(round.into_iter(), depth)?;
        let result = self.weigh(&comprehension.result, depth + 1)?;
        self.scope.truncate(outer);
        let before = Weight { work: range.work, ..Weight::NONE };
        Ok(before.and(initial).and(round.times(range.items)).and(result))
    }
}

// === impl Weight ===

impl Weight {
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

// === impl Fault ===

impl Fault {
    /// The problem, with the place where the name is written.
    pub(super) fn located(&self, text: &str) -> String {
        let place = self.name.as_deref().and_then(|name| place_of(text, name));
        match place {
            Some((line, column)) => super::located(line, column, &self.problem),
            None => self.problem.clone(),
        }
    }
}

/// A pattern that is written out is tried on an empty text.
fn check_pattern(pattern: &IdedExpr) -> Result<(), Fault> {
    let Expr::Literal(LiteralValue::String(text)) = &pattern.expr else { return Ok(()) };
    let arguments = vec![CowVal::owned(CelString::from("")), CowVal::owned(text.clone())];
    let matches = environment().find_overload("matches", &arguments);
    match matches.expect("one of CEL's own functions")(arguments) {
        Ok(_) => Ok(()),
        Err(error) => fault(error.to_string()),
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

fn fault<T>(problem: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { problem: problem.into(), name: None })
}

fn named<T>(name: &str, problem: String) -> Result<T, Fault> {
    Err(Fault { problem, name: Some(name.to_owned()) })
}

/// Line and column of a whole word outside quotes, from 1.
pub(super) fn place_of(text: &str, name: &str) -> Option<(usize, usize)> {
    let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (start, _) = text.match_indices(name).find(|(start, _)| {
        let (before, after) = (&text[..*start], &text[start + name.len()..]);
        !before.ends_with(in_word) && !after.starts_with(in_word) && !is_quoted(before)
    })?;
    let line_start = text[..start].rfind('\n').map_or(0, |end| end + 1);
    Some((text[..start].matches('\n').count() + 1, text[line_start..start].chars().count() + 1))
}

/// Whether what follows the text is inside quotes.
fn is_quoted(before: &str) -> bool {
    let (mut quote, mut escaped) = (None, false);
    for c in before.chars() {
        match quote {
            None if c == '"' || c == '\'' => quote = Some(c),
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            _ => {}
        }
    }
    quote.is_some()
}
