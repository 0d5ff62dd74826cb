//! Admission policies, evaluated as an API server would.

use std::{collections::HashMap, sync::Arc};

use cel::{
    Context, Env, ExecutionError, Value as Cel, add_member_overload, add_overload,
    common::types::{CelBool, CelInt, CelString},
    parser::PrattParser,
};
use serde_json::Value;
use windlass_core::selector::Amount;

/// Type of a number in policies: an integer before Kubernetes 1.37, a float since.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numbers {
    Integer,
    Float,
}

/// Verdict of a policy on a request with these parts; on refusal its message. Match conditions are ignored.
pub(crate) fn evaluate_policy(
    policy: &Value,
    parts: &[(&str, &Value)],
    numbers: Numbers,
) -> Result<(), String> {
    let env = environment();
    let mut variables = HashMap::new();
    let evaluate = |expression: &str, variables: &HashMap<String, Cel>| {
        let mut context = Context::with_env(Arc::clone(&env));
        for (name, part) in parts {
            context.add_variable_from_value(*name, value(part, numbers));
        }
        context.add_variable_from_value("variables", variables.clone());
        let parser = PrattParser::new().enable_optional_syntax(true);
        let parsed = parser.parse(expression).expect("an expression");
        Cel::resolve(&parsed, &context).map_err(|error| format!("{expression}: {error}"))
    };
    for variable in policy["spec"]["variables"].as_array().expect("variables") {
        let result = evaluate(text(&variable["expression"]), &variables);
        // As at an API server, a variable without a value is an error only in an expression that uses it.
        if let Ok(value) = result {
            variables.insert(text(&variable["name"]).to_owned(), value);
        }
    }
    for validation in policy["spec"]["validations"].as_array().expect("validations") {
        match evaluate(text(&validation["expression"]), &variables)? {
            Cel::Bool(true) => continue,
            Cel::Bool(false) => {}
            other => return Err(format!("{other:?} is no boolean")),
        }
        let message = validation["messageExpression"].as_str();
        let message = message.map(|it| evaluate(it, &variables));
        return Err(match message {
            Some(Ok(Cel::String(message))) => message.to_string(),
            _ => text(&validation["message"]).to_owned(),
        });
    }
    Ok(())
}

fn environment() -> Arc<Env> {
    fn quantity(text: &CelString<'_>) -> Result<Amount, ExecutionError> {
        Amount::parse(text.inner())
            .ok_or_else(|| ExecutionError::function_error("quantity", "none"))
    }
    fn is_quantity(text: &CelString<'_>) -> CelBool {
        CelBool::from(Amount::parse(text.inner()).is_some())
    }
    fn compare_to(a: &Amount, b: &Amount) -> CelInt {
        CelInt::from(a.cmp(b) as i64)
    }
    fn declare(env: &mut Env) -> Result<(), cel::DeclarationError> {
        add_overload!(env, fn quantity: (CelString<'_>) -> Result<Amount>)?;
        add_overload!(env, fn is_quantity: (CelString<'_>) -> CelBool)?;
        add_member_overload!(env, fn compare_to: (Amount, Amount) -> CelInt)
    }
    let mut env = Env::default().with_stdlib();
    declare(&mut env).expect("distinct names");
    Arc::new(env)
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// A document as a CEL value.
fn value(document: &Value, numbers: Numbers) -> Cel {
    match document {
        Value::Null => Cel::Null,
        Value::Bool(it) => Cel::Bool(*it),
        Value::String(it) => it.as_str().into(),
        Value::Array(items) => items.iter().map(|it| value(it, numbers)).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, it)| (key.as_str(), value(it, numbers)));
            fields.collect::<HashMap<_, _>>().into()
        }
        Value::Number(it) => match (it.as_i64(), numbers) {
            (Some(integer), Numbers::Integer) => Cel::Int(integer),
            _ => Cel::Float(it.as_f64().expect("a number")),
        },
    }
}
