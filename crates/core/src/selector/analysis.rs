//! Analysis of an expression's text: references, comparisons and conjuncts.

use std::{collections::BTreeSet, fmt};

use cel::common::ast::{
    CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr,
    operators::{
        EQUALS, GREATER, GREATER_EQUALS, IN, INDEX, LESS, LESS_EQUALS, LOGICAL_AND, NEGATE,
        NOT_EQUALS, OPT_INDEX, OPT_SELECT,
    },
};

use super::{DeviceExpression, check::position_of, literal, with_position};
use crate::{
    attribute::{AttributeName, AttributeValue},
    device::Device,
};

/// A reference of an expression to a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reference {
    /// An attribute: domain and name.
    Attribute(String, String),
    /// A capacity: domain and name.
    Capacity(String, String),
    /// A field of every device: `id`, `index`, `kind`, `source`.
    Field(String),
}

/// A literal value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    /// `"10ee"`
    Text(String),
    /// A number as written.
    Number(String),
    /// `true` or `false`
    Boolean(bool),
    /// `semver("9.0.0")`
    Version,
    /// `quantity("40Gi")`
    Quantity,
    /// Bytes or `null`; no device value has such a type.
    Other,
}

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// String.
    Text,
    /// Number, integer or not; CEL compares them with each other.
    Number,
    /// Boolean.
    Boolean,
    /// Version, compared by `isLessThan` and so on.
    Version,
    /// Quantity, compared by `isLessThan` and so on.
    Quantity,
    /// A type that no device value has.
    Other,
}

/// A comparison of a device value with a literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The device value.
    pub reference: Reference,
    /// The literal.
    pub literal: Literal,
}

/// Comparison operators.
const COMPARISONS: [&str; 6] = [EQUALS, NOT_EQUALS, LESS, LESS_EQUALS, GREATER, GREATER_EQUALS];

// === impl DeviceExpression ===

impl DeviceExpression {
    /// All references in source order, tests by `has()` included.
    pub fn references(&self) -> Vec<Reference> {
        let mut references = Vec::new();
        walk(&self.parsed, &mut |node| references.extend(reference_of(node)));
        references
    }

    /// The attributes that the answer depends on; `None` if it may depend on any, as in a loop over all attributes.
    pub fn read_attributes(&self) -> Option<BTreeSet<AttributeName>> {
        let (mut devices, mut fields, mut maps, mut names) = (0, 0, 0, Vec::new());
        walk(&self.parsed, &mut |node| {
            match &node.expr {
                Expr::Ident(name) if name == DEVICE => devices += 1,
                Expr::Select(select) if is_device(&select.operand) => {
                    fields += 1;
                    maps += usize::from(select.field == "attributes");
                }
                _ => {}
            }
            if let Some(Reference::Attribute(domain, name)) = reference_of(node) {
                names.push(AttributeName::from_slice_name(&domain, &name));
            }
        });
        // `device` alone, or `device.attributes` without a key, can read any attribute.
        (devices == fields && maps == names.len()).then(|| names.into_iter().collect())
    }

    /// All comparisons with a literal.
    pub fn comparisons(&self) -> Vec<Comparison> {
        let mut comparisons = Vec::new();
        walk(&self.parsed, &mut |node| {
            if let Expr::Call(call) = &node.expr {
                comparisons.extend(comparisons_of(call));
            }
        });
        comparisons
    }

    /// The operands of a conjunction `a && b && c`; any other expression is returned whole.
    pub fn conjuncts(&self) -> Vec<Self> {
        let is_conjunction =
            matches!(&self.parsed.expr, Expr::Call(call) if call.func_name == LOGICAL_AND);
        let conjuncts = if is_conjunction { split_conjuncts(&self.text) } else { Vec::new() };
        // The splitter misreads some text, such as a comment with quotes. Then the expression stays whole.
        let conjuncts: Result<Vec<Self>, _> = conjuncts.into_iter().map(str::parse).collect();
        conjuncts
            .ok()
            .filter(|conjuncts| !conjuncts.is_empty())
            .unwrap_or_else(|| vec![self.clone()])
    }

    /// A problem, prefixed with line and column of a name in the expression.
    pub fn with_position(&self, name: &str, problem: &str) -> String {
        let text = self.as_str();
        let inside_quotes = || position_of(&text.replace(['"', '\''], " "), name);
        match position_of(text, name).or_else(inside_quotes) {
            Some((line, column)) => with_position(line, column, problem),
            None => problem.to_owned(),
        }
    }
}

/// Splits text at `&&` outside brackets and quotes.
fn split_conjuncts(text: &str) -> Vec<&str> {
    let (mut conjuncts, mut start, mut depth, mut quote) = (Vec::new(), 0, 0_i32, None);
    let mut characters = text.char_indices().peekable();
    while let Some((index, character)) = characters.next() {
        match (quote, character) {
            (Some(_), '\\') => drop(characters.next()),
            (Some(opening), _) if character == opening => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            (None, '&') if depth == 0 && characters.next_if(|next| next.1 == '&').is_some() => {
                conjuncts.push(text[start..index].trim());
                start = index + 2;
            }
            _ => {}
        }
    }
    conjuncts.push(text[start..].trim());
    conjuncts
}

/// Visits all nodes except the bodies of loops whose variable shadows `device`.
fn walk<'a>(node: &'a IdedExpr, visit: &mut dyn FnMut(&'a IdedExpr)) {
    visit(node);
    match &node.expr {
        Expr::Call(call) => {
            call.target
                .as_deref()
                .into_iter()
                .chain(&call.args)
                .for_each(|child| walk(child, visit));
        }
        Expr::Select(select) => walk(&select.operand, visit),
        Expr::List(list) => list.elements.iter().for_each(|child| walk(child, visit)),
        Expr::Map(map) => {
            for entry in &map.entries {
                if let EntryExpr::MapEntry(entry) = &entry.expr {
                    walk(&entry.key, visit);
                    walk(&entry.value, visit);
                }
            }
        }
        Expr::Comprehension(comprehension) => {
            walk(&comprehension.iter_range, visit);
            if comprehension.iter_var != DEVICE
                && comprehension.iter_var2.as_deref() != Some(DEVICE)
            {
                for child in [
                    &comprehension.accu_init,
                    &comprehension.loop_cond,
                    &comprehension.loop_step,
                    &comprehension.result,
                ] {
                    walk(child, visit);
                }
            }
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
    }
}

const DEVICE: &str = "device";

fn is_device(node: &IdedExpr) -> bool {
    matches!(&node.expr, Expr::Ident(name) if name == DEVICE)
}

/// The device value that a node refers to, including `has()` and optional access.
fn reference_of(node: &IdedExpr) -> Option<Reference> {
    match &node.expr {
        Expr::Select(select) => select_of(select),
        Expr::Call(call) if [INDEX, OPT_INDEX, OPT_SELECT].contains(&call.func_name.as_str()) => {
            index_of(call)
        }
        _ => None,
    }
}

/// The device value that a node evaluates to, excluding `has()` and optional access.
fn value_of(node: &IdedExpr) -> Option<Reference> {
    match &node.expr {
        Expr::Select(select) if select.test => None,
        Expr::Call(call) if call.func_name != INDEX => None,
        _ => reference_of(node),
    }
}

/// `device.index`, or `device.attributes["d"].name`
fn select_of(select: &SelectExpr) -> Option<Reference> {
    if is_device(&select.operand) {
        let is_value = type_of_field(&select.field).is_some();
        return is_value.then(|| Reference::Field(select.field.clone()));
    }
    let reference = domain(&select.operand)?;
    Some(reference(&select.field))
}

/// `device.attributes["d"]["name"]`, and its optional form.
fn index_of(call: &CallExpr) -> Option<Reference> {
    let [operand, name] = call.args.as_slice() else { return None };
    let reference = domain(operand)?;
    Some(reference(text(name)?))
}

/// Constructor of references after `device.attributes["d"]` or `device.capacity["d"]`.
fn domain(node: &IdedExpr) -> Option<impl Fn(&str) -> Reference> {
    let Expr::Call(call) = &node.expr else { return None };
    let is_index = [INDEX, OPT_INDEX].contains(&call.func_name.as_str());
    let [operand, domain] = call.args.as_slice() else { return None };
    let Expr::Select(select) = &operand.expr else { return None };
    let is_of_device = is_device(&select.operand);
    let (domain, list) = (text(domain)?.to_owned(), select.field.clone());
    let is_known = list == "attributes" || list == "capacity";
    (is_index && is_of_device && is_known).then_some(move |name: &str| {
        let (domain, name) = (domain.clone(), name.to_owned());
        if list == "capacity" {
            Reference::Capacity(domain, name)
        } else {
            Reference::Attribute(domain, name)
        }
    })
}

fn text(node: &IdedExpr) -> Option<&str> {
    match &node.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Comparisons of a call: with a literal, or with each element of a list.
fn comparisons_of(call: &CallExpr) -> Vec<Comparison> {
    let [left, right] = call.args.as_slice() else { return Vec::new() };
    let comparison = |reference: &IdedExpr, literal: &IdedExpr| {
        Some(Comparison { reference: value_of(reference)?, literal: literal_of(literal)? })
    };
    match (call.func_name.as_str(), &right.expr) {
        (IN, Expr::List(list)) => {
            list.elements.iter().filter_map(|element| comparison(left, element)).collect()
        }
        (name, _) if COMPARISONS.contains(&name) => {
            comparison(left, right).or_else(|| comparison(right, left)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn literal_of(node: &IdedExpr) -> Option<Literal> {
    match &node.expr {
        Expr::Literal(literal) => Some(match literal {
            LiteralValue::String(text) => Literal::Text(text.inner().to_owned()),
            LiteralValue::Int(number) => Literal::Number(number.inner().to_string()),
            LiteralValue::UInt(number) => Literal::Number(number.inner().to_string()),
            LiteralValue::Double(number) => Literal::Number(number.inner().to_string()),
            LiteralValue::Boolean(truth) => Literal::Boolean(*truth.inner()),
            LiteralValue::Bytes(_) | LiteralValue::Null => Literal::Other,
        }),
        Expr::Call(call) if call.target.is_none() => match (call.func_name.as_str(), &*call.args) {
            ("semver", [_]) => Some(Literal::Version),
            ("quantity", [_]) => Some(Literal::Quantity),
            (NEGATE, [number]) => match literal_of(number)? {
                Literal::Number(number) => Some(Literal::Number(format!("-{number}"))),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

fn type_of_field(field: &str) -> Option<ValueType> {
    match field {
        "id" | "kind" | "source" => Some(ValueType::Text),
        "index" => Some(ValueType::Number),
        _ => None,
    }
}

// === impl Reference ===

impl Reference {
    /// Name without domain.
    pub fn name(&self) -> &str {
        match self {
            Self::Attribute(_, name) | Self::Capacity(_, name) | Self::Field(name) => name,
        }
    }

    /// Type of the device's value; `None` for an attribute that the device lacks.
    pub fn type_in(&self, device: &Device) -> Option<ValueType> {
        match self {
            Self::Attribute(..) => self.attribute_of(device).map(ValueType::of),
            Self::Capacity(..) => Some(ValueType::Quantity),
            Self::Field(field) => type_of_field(field),
        }
    }

    /// The device's value as a CEL literal; `None` if the device lacks it.
    pub fn value_in(&self, device: &Device) -> Option<String> {
        match self {
            Self::Attribute(..) => self.attribute_of(device).map(|value| match value {
                AttributeValue::String(text) => literal(text),
                other => other.to_string(),
            }),
            Self::Capacity(domain, name) => {
                let mut entries = device.capacity.iter();
                let (_, amount) =
                    entries.find(|(key, _)| key.domain() == domain && key.name() == name)?;
                Some(amount.to_string())
            }
            Self::Field(field) => match field.as_str() {
                "id" => Some(literal(device.id.as_str())),
                "kind" => Some(literal(&device.kind.to_string())),
                "source" => Some(literal(device.source.as_str())),
                "index" => Some(device.index.to_string()),
                _ => None,
            },
        }
    }

    fn attribute_of<'d>(&self, device: &'d Device) -> Option<&'d AttributeValue> {
        let Self::Attribute(domain, name) = self else { return None };
        let mut entries = device.attributes.iter();
        let entry = entries.find(|(key, _)| key.domain() == domain && key.name() == name);
        entry.map(|(_, value)| value)
    }
}

// === impl Literal ===

impl Literal {
    /// Type of the literal.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::Text(_) => ValueType::Text,
            Self::Number(_) => ValueType::Number,
            Self::Boolean(_) => ValueType::Boolean,
            Self::Version => ValueType::Version,
            Self::Quantity => ValueType::Quantity,
            Self::Other => ValueType::Other,
        }
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&literal(text)),
            Self::Number(number) => f.write_str(number),
            Self::Boolean(truth) => truth.fmt(f),
            Self::Version => f.write_str("semver(...)"),
            Self::Quantity => f.write_str("quantity(...)"),
            Self::Other => f.write_str("null or bytes"),
        }
    }
}

// === impl ValueType ===

impl ValueType {
    fn of(value: &AttributeValue) -> Self {
        match value {
            AttributeValue::String(_) => Self::Text,
            AttributeValue::Int(_) => Self::Number,
            AttributeValue::Bool(_) => Self::Boolean,
            AttributeValue::Version(_) => Self::Version,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "a string",
            Self::Number => "a number",
            Self::Boolean => "a boolean",
            Self::Version => "a version",
            Self::Quantity => "a quantity",
            Self::Other => "of a type that no device value has",
        })
    }
}
