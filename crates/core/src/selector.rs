//! CEL device selectors, as in Dynamic Resource Allocation (DRA) and over the same attributes.
//!
//! ```text
//! device.attributes["nvidia.com"].productName.matches("^NVIDIA A100")
//!   && device.capacity["nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0
//!   && device.attributes["nvidia.com"].cudaComputeCapability.isGreaterThan(semver("8.9.0"))
//! ```
//!
//! As in DRA, an unknown domain is an empty map, and a missing attribute is an error, which `has()` and
//! `.?name.orValue(...)` avoid.
//!
//! Besides attributes and capacity, selectors of node configurations have the fields `device.id`, `device.index`,
//! `device.kind` and `device.source`. Selectors of claims and device classes have DRA's `device.driver` and
//! `device.allowMultipleAllocations` instead. Of Kubernetes' CEL libraries, quantity and semver are present;
//! lists, strings, sets, URLs and addresses are not.

/// Makes a type usable as a CEL value.
macro_rules! value_of_expressions {
    ($type:ty, $name:literal) => {
        impl cel::common::value::Val for $type {
            fn get_type(&self) -> &cel::common::types::Type {
                Self::cel_type()
            }

            fn cel_type() -> &'static cel::common::types::Type {
                static TYPE: cel::common::types::Type =
                    cel::common::types::Type::new_unspecified_type($name);
                &TYPE
            }

            fn equals(&self, other: &dyn cel::common::value::Val) -> bool {
                other.downcast_ref::<Self>() == Some(self)
            }

            fn clone_as_boxed<'v>(&self) -> Box<dyn cel::common::value::Val + 'v> {
                Box::new(Clone::clone(self))
            }

            fn as_any(&self) -> Option<&dyn std::any::Any> {
                Some(self)
            }
        }

        impl cel::common::value::StaticVal for $type {}
    };
}

mod analysis;
mod check;
mod diagnose;
mod language;
mod nearest;
mod published;
mod quantity;
mod variable;
mod version;

use std::{fmt, str::FromStr, sync::Arc};

use cel::{
    Context, ExecutionError, Value,
    common::{
        ast::IdedExpr,
        types::CelBool,
        value::{CowVal, Val},
    },
    context::VariableResolver,
    parser::PrattParser,
};

pub use self::{
    analysis::{Comparison, Literal, Reference, ValueType},
    nearest::nearest,
    published::{PreparedDevice, PublishedDevice, PublishedExpression},
    quantity::Amount,
    version::is_semver,
};
use crate::device::Device;

/// Parsed CEL expression over the variable `device`. Expressions of equal text are equal.
#[derive(Clone)]
pub struct DeviceExpression {
    text: Arc<str>,
    parsed: Arc<IdedExpr>,
}

/// Text that is not a device expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} selects no devices: {problem}")]
pub struct InvalidExpression {
    text: String,
    problem: String,
}

/// Evaluation error of an expression for a device, such as a missing attribute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{expression:?} cannot be evaluated for {device}: {problem}")]
pub struct EvaluationError {
    expression: String,
    device: String,
    problem: String,
    cause: ErrorCause,
}

/// Value of the variable `device`, borrowed so that several expressions can use it.
struct DeviceVariable<'v>(&'v dyn Val);

/// Cause of an evaluation error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorCause {
    /// The device lacks an attribute.
    MissingAttribute,
    /// An operator or function does not accept the type of a value.
    WrongType,
    /// A function does not accept a value, such as text that is not a version.
    Value,
}

/// Maximum number of `?` in an expression. The parser limits nesting, but a chain of `a ? b : c` uses stack without
/// limit.
const MAX_CHOICES: usize = 50;

/// Longest quotation of an expression in an error, in characters.
const MAX_SHOWN_CHARS: usize = 300;

// === impl DeviceExpression ===

impl DeviceExpression {
    /// Longest expression, in bytes: the limit of DRA.
    pub const MAX_BYTES: usize = 10 * 1024;

    /// The expression as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// True if the device is selected.
    pub fn matches(&self, device: &Device) -> Result<bool, EvaluationError> {
        self.evaluate(&*variable::variable(device), device.id.as_str())
    }

    /// Evaluates the expression with `variable` as the CEL variable `device`. The parameter `device` is the name in
    /// errors.
    fn evaluate(&self, variable: &dyn Val, device: &str) -> Result<bool, EvaluationError> {
        let variable = DeviceVariable(variable);
        let mut context = Context::with_env(language::environment());
        context.set_variable_resolver(&variable);
        let answer = Value::resolve_val(&self.parsed, &context).map_err(|error| {
            let cause = match error {
                ExecutionError::NoSuchKey(_) => ErrorCause::MissingAttribute,
                ExecutionError::NoSuchOverload(_) => ErrorCause::WrongType,
                _ => ErrorCause::Value,
            };
            EvaluationError {
                cause,
                ..self.evaluation_error(device, &with_advice(error.to_string()))
            }
        })?;
        answer.downcast_ref::<CelBool>().map(|truth| *truth.inner()).ok_or_else(|| {
            let kind = answer.get_type().name();
            self.evaluation_error(
                device,
                &format!("it gives a value of type {kind}, not true or false"),
            )
        })
    }

    fn evaluation_error(&self, device: &str, problem: &str) -> EvaluationError {
        let (expression, device) = (in_a_line(&self.text), device.to_owned());
        EvaluationError {
            expression,
            device,
            problem: in_a_line(problem),
            cause: ErrorCause::WrongType,
        }
    }

    /// Parses an expression over a `device` with these fields.
    fn parse_with_fields(
        fields: &'static [&'static str],
        text: &str,
    ) -> Result<Self, InvalidExpression> {
        let invalid = |problem: String| InvalidExpression {
            text: in_a_line(text),
            problem: in_a_line(&problem),
        };
        check_length(text).map_err(invalid)?;
        let parsed = parse(text).map_err(invalid)?;
        check::check(&parsed, fields)
            .map_err(|check_error| invalid(check_error.with_position(text)))?;
        Ok(Self { text: text.into(), parsed: Arc::new(parsed) })
    }
}

impl VariableResolver for DeviceVariable<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        (variable == "device").then_some(CowVal::Borrowed(self.0))
    }
}

impl EvaluationError {
    /// True if the device lacks an attribute, which another device may have.
    pub fn is_missing_attribute(&self) -> bool {
        self.cause == ErrorCause::MissingAttribute
    }

    /// True if a value has the wrong type.
    pub fn is_type_error(&self) -> bool {
        self.cause == ErrorCause::WrongType
    }
}

impl FromStr for DeviceExpression {
    type Err = InvalidExpression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse_with_fields(&variable::FIELDS, text)
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

/// Text as a CEL string literal. Control characters besides line breaks need no escape in CEL.
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

/// Checks the limits that protect the parser.
fn check_length(text: &str) -> Result<(), String> {
    let (bytes, max_bytes) = (text.len(), DeviceExpression::MAX_BYTES);
    let choices = text.matches('?').count();
    if bytes > max_bytes {
        return Err(format!("it has {bytes} bytes and {max_bytes} are allowed"));
    }
    if choices > MAX_CHOICES {
        return Err(format!("it has {choices} '?' and {MAX_CHOICES} are allowed"));
    }
    Ok(())
}

/// Parses with the crate's precedence parser. Its generated parser has no depth limit, and its tables would
/// enlarge the binary.
fn parse(text: &str) -> Result<IdedExpr, String> {
    let parser = PrattParser::new().enable_optional_syntax(true);
    parser.parse(text).map_err(|errors| match errors.errors.first() {
        Some(error) if error.pos.0 > 0 => {
            let (line, column) = error.pos;
            let problem = error.msg.trim_start_matches("Syntax error: ");
            with_position(line.unsigned_abs(), column.unsigned_abs(), problem)
        }
        Some(error) => error.msg.clone(),
        None => "it cannot be read".to_owned(),
    })
}

fn with_position(line: usize, column: usize, problem: &str) -> String {
    match line {
        1 => format!("column {column}: {problem}"),
        _ => format!("line {line}, column {column}: {problem}"),
    }
}

/// Appends advice to errors of operators on quantities or versions, which DRA does not support either.
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
