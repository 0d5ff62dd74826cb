//! Names of MIG profiles, `1g.10gb`, and of the resources that are named after them.

/// True for the name of a profile that hardware could have: `[Nc.]Ng.Mgb`, then attributes after a `+`
/// or, from newer drivers, a `-`. A GPU has at most eight slices.
pub fn is_possible(profile: &str) -> bool {
    let (shape, attributes) = match profile.find(['+', '-']) {
        Some(index) => (&profile[..index], Some(&profile[index..])),
        None => (profile, None),
    };
    let mut parts = shape.rsplit('.');
    let memory = parts.next().and_then(|part| number(part, "gb"));
    let slices = parts.next().and_then(|part| number(part, "g"));
    let compute = parts.next().map(|part| number(part, "c"));
    let (Some(memory), Some(slices), None) = (memory, slices, parts.next()) else { return false };
    (1..=MAX_MEMORY_GB).contains(&memory)
        && (1..=MAX_SLICES).contains(&slices)
        && compute.is_none_or(|part| part.is_some_and(|part| (1..=slices).contains(&part)))
        && attributes.is_none_or(are_attributes)
}

/// The profile of a resource, from the part of the resource's name after `mig-`.
pub fn from_resource_suffix(name: &str) -> String {
    match name.split_once("gb.") {
        Some((shape, attributes)) => format!("{shape}gb+{attributes}"),
        None => name.to_owned(),
    }
}

/// Maximum number of slices of a profile. The largest GPUs have seven; one more allows for later GPUs.
const MAX_SLICES: u32 = 8;

/// Maximum memory of a profile in GB, several times the memory of the largest GPU.
const MAX_MEMORY_GB: u32 = 2048;

fn number(part: &str, unit: &str) -> Option<u32> {
    let digits = part.strip_suffix(unit)?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| is_plain)
}

/// `+me`, `+me.all`, `-me`, `+gfx`.
fn are_attributes(text: &str) -> bool {
    let words = text[1..].split(['.', '+', '-', ',']);
    words
        .into_iter()
        .all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_real_hardware_are_possible_and_others_are_not() {
        for profile in [
            "1g.5gb",
            "7g.80gb",
            "1c.3g.20gb",
            "1g.10gb+me",
            "1g.10gb-me",
            "1g.10gb+me.all",
            "4g.71gb",
        ] {
            assert!(is_possible(profile), "{profile}");
        }
        for profile in [
            "",
            "1g",
            "1g.",
            "9g.80gb",
            "0g.5gb",
            "1g.0gb",
            "01g.5gb",
            "4c.3g.20gb",
            "1g.5GB",
            "a.1g.5gb",
            "1g.5gb+",
            "1g.5gb+m e",
            "1g.99999gb",
            "1c.1c.1g.5gb",
            "0c.1g.5gb",
        ] {
            assert!(!is_possible(profile), "{profile}");
        }
    }

    #[test]
    fn a_resources_name_leads_back_to_its_profile() {
        for profile in ["1g.10gb", "1g.10gb+me", "1g.10gb-me", "1g.10gb+me.all"] {
            assert_eq!(from_resource_suffix(&profile.replace('+', ".")), profile);
        }
    }
}
