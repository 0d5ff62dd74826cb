//! Devices selected by an expression: CEL, as Dynamic Resource Allocation has it, over the same
//! attributes.
//!
//! ```text
//! device.attributes["nvidia.com"].productName.matches("^NVIDIA A100")
//!   && device.capacity["nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0
//!   && device.attributes["nvidia.com"].cudaComputeCapability.isGreaterThan(semver("8.9.0"))
//! ```
//!
//! As in DRA a domain that a device knows nothing of is an empty map and an attribute that it lacks
//! is an error, which `has()` and `.?name.orValue(...)` avoid. `device.id`, `device.index` and
//! `device.kind` are ours: a node's devices have them with no driver. `device.driver` and
//! `device.allowMultipleAllocations` are not there, since a device of the node's configuration is of
//! no DRA driver. Of Kubernetes' libraries there are quantities and versions; those for lists,
//! strings, sets, URLs and addresses are not.

mod check;
mod facts;
mod language;
mod quantity;
mod version;

use std::{fmt, str::FromStr, sync::Arc};

use cel::{
    Context, ExecutionError, Value,
    common::{ast::IdedExpr, types::CelBool},
    parser::PrattParser,
};

pub use self::quantity::billionths;
use crate::device::Device;

/// A CEL expression about `device`, parsed once; two with the same text are equal.
#[derive(Clone)]
pub struct DeviceExpression {
    text: Arc<str>,
    parsed: Arc<IdedExpr>,
}

/// Why a text is no expression about a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} selects no devices: {problem}")]
pub struct InvalidExpression {
    text: String,
    problem: String,
}

/// Why an expression has no answer for a device, such as an attribute that the device lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{expression:?} has no answer for {device}: {problem}")]
pub struct NoAnswer {
    expression: String,
    device: String,
    problem: String,
    sort: Sort,
}

/// What sort of thing keeps an expression from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// The device lacks what is asked for.
    Lack,
    /// Something is asked of a value that is of no such type, of this device or of any.
    Misuse,
    /// A value is not what a function takes, such as a text that is no version.
    Value,
}

/// The parser counts how deep brackets are, but not how long a chain of `a ? b : c` is, and takes stack
/// for each.
const MAX_CHOICES: usize = 50;

/// Most of what was written that an error repeats.
const MAX_SHOWN_CHARS: usize = 300;

// === impl DeviceExpression ===

impl DeviceExpression {
    /// The longest expression, in bytes: DRA's limit.
    pub const MAX_BYTES: usize = 10 * 1024;

    /// The expression as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the device is selected.
    pub fn matches(&self, device: &Device) -> Result<bool, NoAnswer> {
        let mut context = Context::with_env(language::environment());
        context.add_variable_as_val("device", facts::variable(device));
        let answer = Value::resolve_val(&self.parsed, &context).map_err(|error| {
            let sort = match error {
                ExecutionError::NoSuchKey(_) => Sort::Lack,
                ExecutionError::NoSuchOverload(_) => Sort::Misuse,
                _ => Sort::Value,
            };
            NoAnswer { sort, ..self.no_answer(device, &with_advice(error.to_string())) }
        })?;
        answer.downcast_ref::<CelBool>().map(|truth| *truth.inner()).ok_or_else(|| {
            let kind = answer.get_type().name();
            self.no_answer(device, &format!("it gives a value of type {kind}, not true or false"))
        })
    }

    fn no_answer(&self, device: &Device, problem: &str) -> NoAnswer {
        let (expression, device) = (in_a_line(&self.text), device.id.to_string());
        NoAnswer { expression, device, problem: in_a_line(problem), sort: Sort::Misuse }
    }
}

impl NoAnswer {
    /// Whether the device lacks something that the expression asks for; another device may have it.
    pub fn is_lack(&self) -> bool {
        self.sort == Sort::Lack
    }

    /// Whether it asks something of a value that is of no such type.
    pub fn is_misuse(&self) -> bool {
        self.sort == Sort::Misuse
    }
}

impl FromStr for DeviceExpression {
    type Err = InvalidExpression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |problem: String| InvalidExpression {
            text: in_a_line(text),
            problem: in_a_line(&problem),
        };
        check_length(text).map_err(invalid)?;
        let parsed = parse(text).map_err(invalid)?;
        check::check(&parsed).map_err(|fault| invalid(fault.located(text)))?;
        Ok(Self { text: text.into(), parsed: Arc::new(parsed) })
    }
}

impl PartialEq for DeviceExpression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for DeviceExpression {}

impl fmt::Debug for DeviceExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// A text as an expression writes it. Other control characters may stand in one as they are.
pub fn literal(text: &str) -> String {
    let mut literal = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => literal.extend(['\\', c]),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            _ => literal.push(c),
        }
    }
    literal.push('"');
    literal
}

/// What has to hold before the parser may see a text.
fn check_length(text: &str) -> Result<(), String> {
    let (bytes, most) = (text.len(), DeviceExpression::MAX_BYTES);
    let choices = text.matches('?').count();
    if bytes > most {
        return Err(format!("it has {bytes} bytes and {most} are allowed"));
    }
    if choices > MAX_CHOICES {
        return Err(format!("it has {choices} '?' and {MAX_CHOICES} are allowed"));
    }
    Ok(())
}

/// The crate's parser by precedence rather than the generated one that its `Program` takes: it counts
/// how deep it is, and the generated one with its tables stays out of the binary.
fn parse(text: &str) -> Result<IdedExpr, String> {
    let parser = PrattParser::new().enable_optional_syntax(true);
    parser.parse(text).map_err(|errors| match errors.errors.first() {
        Some(error) if error.pos.0 > 0 => {
            let (line, column) = error.pos;
            let problem = error.msg.trim_start_matches("Syntax error: ");
            located(line.unsigned_abs(), column.unsigned_abs(), problem)
        }
        Some(error) => error.msg.clone(),
        None => "it cannot be read".to_owned(),
    })
}

fn located(line: usize, column: usize, problem: &str) -> String {
    match line {
        1 => format!("column {column}: {problem}"),
        _ => format!("line {line}, column {column}: {problem}"),
    }
}

/// Operators do not compare quantities and versions, in DRA as here.
fn with_advice(problem: String) -> String {
    if problem.starts_with("found no matching overload for '_") && problem.contains("kubernetes.") {
        return format!("{problem}; compare with isLessThan, isGreaterThan or compareTo");
    }
    problem
}

fn in_a_line(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(MAX_SHOWN_CHARS) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests;
