//! CEL environment: the standard library, and Kubernetes' quantity and semver functions.

use std::{
    cmp::Ordering,
    sync::{Arc, LazyLock},
};

use cel::{
    DeclarationError, Env, ExecutionError, add_member_overload, add_overload,
    common::types::{CelBool, CelDouble, CelInt, CelString},
};

use super::{
    quantity::Amount,
    version::{self, Version},
};

/// Functions that an expression may call.
pub(super) const FUNCTIONS: &[&str] = &[
    "add",
    "asApproximateFloat",
    "asInteger",
    "bool",
    "bytes",
    "compareTo",
    "contains",
    "double",
    "dyn",
    "endsWith",
    "hasValue",
    "int",
    "isGreaterThan",
    "isInteger",
    "isLessThan",
    "isQuantity",
    "isSemver",
    "major",
    "matches",
    "minor",
    "or",
    "orValue",
    "patch",
    "quantity",
    "semver",
    "sign",
    "size",
    "startsWith",
    "string",
    "sub",
    "type",
    "uint",
    "value",
];

/// Macros, which the parser expands.
pub(super) const MACROS: [&str; 6] = ["all", "exists", "exists_one", "filter", "has", "map"];

/// The shared environment of all expressions.
pub(super) fn environment() -> Arc<Env> {
    static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
        let mut env = Env::default().with_stdlib();
        declare(&mut env).expect("no two functions have the same name and the same types");
        Arc::new(env)
    });
    Arc::clone(&ENVIRONMENT)
}

fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    declare_quantities(env)?;
    declare_versions(env)
}

fn declare_quantities(env: &mut Env) -> Result<(), DeclarationError> {
    use quantities::{
        add, add_int, as_approximate_float, as_integer, compare_to, is_greater_than, is_integer,
        is_less_than, is_quantity, quantity, sign, sub, sub_int,
    };
    add_overload!(env, fn quantity: (CelString<'_>) -> Result<Amount>)?;
    add_overload!(env, fn is_quantity: (CelString<'_>) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (Amount, Amount) -> CelInt)?;
    add_member_overload!(env, fn is_less_than: (Amount, Amount) -> CelBool)?;
    add_member_overload!(env, fn is_greater_than: (Amount, Amount) -> CelBool)?;
    add_member_overload!(env, fn is_integer: (Amount) -> CelBool)?;
    add_member_overload!(env, fn as_integer: (Amount) -> Result<CelInt>)?;
    add_member_overload!(env, fn as_approximate_float: (Amount) -> CelDouble)?;
    add_member_overload!(env, fn sign: (Amount) -> CelInt)?;
    add_member_overload!(env, fn add: (Amount, Amount) -> Result<Amount>)?;
    add_member_overload!(env, fn add_int: (Amount, CelInt) -> Result<Amount>, name = "add")?;
    add_member_overload!(env, fn sub: (Amount, Amount) -> Result<Amount>)?;
    add_member_overload!(env, fn sub_int: (Amount, CelInt) -> Result<Amount>, name = "sub")
}

fn declare_versions(env: &mut Env) -> Result<(), DeclarationError> {
    use versions::{
        compare_to, is_greater_than, is_less_than, is_semver, major, minor, patch, semver,
    };
    add_overload!(env, fn semver: (CelString<'_>) -> Result<Version>)?;
    add_overload!(env, fn is_semver: (CelString<'_>) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (Version, Version) -> CelInt)?;
    add_member_overload!(env, fn is_less_than: (Version, Version) -> CelBool)?;
    add_member_overload!(env, fn is_greater_than: (Version, Version) -> CelBool)?;
    add_member_overload!(env, fn major: (Version) -> CelInt)?;
    add_member_overload!(env, fn minor: (Version) -> CelInt)?;
    add_member_overload!(env, fn patch: (Version) -> CelInt)
}

/// -1, 0 or 1.
fn sign_of(order: Ordering) -> CelInt {
    CelInt::from(order as i64)
}

mod quantities {
    use super::{Amount, CelBool, CelDouble, CelInt, CelString, ExecutionError, sign_of};

    pub(super) fn quantity(text: &CelString<'_>) -> Result<Amount, ExecutionError> {
        let problem = || format!("{:?} is not a quantity, such as \"40Gi\"", text.inner());
        Amount::parse(text.inner())
            .ok_or_else(|| ExecutionError::function_error("quantity", problem()))
    }

    pub(super) fn is_quantity(text: &CelString<'_>) -> CelBool {
        CelBool::from(Amount::parse(text.inner()).is_some())
    }

    pub(super) fn compare_to(a: &Amount, b: &Amount) -> CelInt {
        sign_of(a.cmp(b))
    }

    pub(super) fn is_less_than(a: &Amount, b: &Amount) -> CelBool {
        CelBool::from(a < b)
    }

    pub(super) fn is_greater_than(a: &Amount, b: &Amount) -> CelBool {
        CelBool::from(a > b)
    }

    pub(super) fn is_integer(amount: &Amount) -> CelBool {
        CelBool::from(amount.as_integer().is_some())
    }

    pub(super) fn as_integer(amount: &Amount) -> Result<CelInt, ExecutionError> {
        let problem = "the quantity is not an integer of 64 bits";
        let integer = amount.as_integer().map(CelInt::from);
        integer.ok_or_else(|| ExecutionError::function_error("asInteger", problem))
    }

    pub(super) fn as_approximate_float(amount: &Amount) -> CelDouble {
        CelDouble::from(amount.to_f64())
    }

    pub(super) fn sign(amount: &Amount) -> CelInt {
        amount.sign()
    }

    pub(super) fn add(a: &Amount, b: &Amount) -> Result<Amount, ExecutionError> {
        a.plus(*b)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "add_member_overload passes references")]
    pub(super) fn add_int(a: &Amount, b: &CelInt) -> Result<Amount, ExecutionError> {
        a.plus(b.into())
    }

    pub(super) fn sub(a: &Amount, b: &Amount) -> Result<Amount, ExecutionError> {
        a.minus(*b)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "add_member_overload passes references")]
    pub(super) fn sub_int(a: &Amount, b: &CelInt) -> Result<Amount, ExecutionError> {
        a.minus(b.into())
    }
}

mod versions {
    use super::{CelBool, CelInt, CelString, ExecutionError, Version, sign_of, version};

    pub(super) fn semver(text: &CelString<'_>) -> Result<Version, ExecutionError> {
        let problem = || format!("{:?} is not a semantic version, such as \"9.0.0\"", text.inner());
        Version::parse(text.inner())
            .ok_or_else(|| ExecutionError::function_error("semver", problem()))
    }

    pub(super) fn is_semver(text: &CelString<'_>) -> CelBool {
        CelBool::from(version::is_semver(text.inner()))
    }

    pub(super) fn compare_to(a: &Version, b: &Version) -> CelInt {
        sign_of(a.cmp(b))
    }

    pub(super) fn is_less_than(a: &Version, b: &Version) -> CelBool {
        CelBool::from(a < b)
    }

    pub(super) fn is_greater_than(a: &Version, b: &Version) -> CelBool {
        CelBool::from(a > b)
    }

    pub(super) fn major(version: &Version) -> CelInt {
        number(version.0.major)
    }

    pub(super) fn minor(version: &Version) -> CelInt {
        number(version.0.minor)
    }

    pub(super) fn patch(version: &Version) -> CelInt {
        number(version.0.patch)
    }

    fn number(number: u64) -> CelInt {
        CelInt::from(i64::try_from(number).unwrap_or(i64::MAX))
    }
}
