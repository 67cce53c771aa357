//! How much a new program takes as arguments and environment, and words for what is too much: the kernel only says "argument
//! list too long".

use std::ffi::CStr;

use rustix::process::{Resource, getrlimit};

/// The longest argument or variable (`NAME=value`), the NUL at its end included: Linux's `MAX_ARG_STRLEN`, 32 pages of 4 KiB.
pub const STRING_BYTES_MAX: usize = 128 << 10;

/// Bounds of what all of them may be together: a quarter of the stack's limit between these.
const TOTAL_BYTES_MIN: u64 = 128 << 10;
const TOTAL_BYTES_MAX: u64 = 6 << 20;

/// What the kernel adds to the length of each string.
const POINTER_BYTES: u64 = 8;

/// Does a program take a variable with this name and value?
pub fn fits_variable(name: &str, value: &str) -> bool {
    name.len() + value.len() + 2 <= STRING_BYTES_MAX
}

/// What arguments and environment may be together, at the limits of this process.
pub fn total_bytes_max() -> u64 {
    let stack = getrlimit(Resource::Stack).current.unwrap_or(u64::MAX);
    (stack / 4).clamp(TOTAL_BYTES_MIN, TOTAL_BYTES_MAX)
}

/// What of a program's arguments and environment is too long, and what to do about it.
pub(crate) fn explain_too_long<'a>(
    arguments: impl Iterator<Item = &'a CStr>,
    environment: impl Iterator<Item = &'a CStr>,
) -> String {
    let bytes = |text: &CStr| text.to_bytes_with_nul().len();
    let remedy = "hand large values on in files";
    let mut total = 0;
    for (number, argument) in arguments.enumerate() {
        if bytes(argument) > STRING_BYTES_MAX {
            let length = bytes(argument) - 1;
            return format!(
                "argument {number} has {length} bytes, and the kernel takes {} at most: {remedy}",
                STRING_BYTES_MAX - 1
            );
        }
        total += bytes(argument) as u64 + POINTER_BYTES;
    }
    let mut longest = c"";
    for variable in environment {
        longest = if bytes(variable) > bytes(longest) { variable } else { longest };
        total += bytes(variable) as u64 + POINTER_BYTES;
    }
    let text = longest.to_string_lossy();
    let name = text.split('=').next().unwrap_or_default();
    let length = bytes(longest) - 1;
    if bytes(longest) > STRING_BYTES_MAX {
        return format!(
            "variable `{name}` has {length} bytes, and the kernel takes {} at most: {remedy}",
            STRING_BYTES_MAX - 1
        );
    }
    format!(
        "arguments and environment have {total} bytes together, and the kernel takes about {} (a quarter of the stack's \
         limit); the longest variable is `{name}` with {length}: {remedy}, or raise `ulimit -s`",
        total_bytes_max()
    )
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn what_is_too_long_is_named_with_size_and_limit() {
        let long = CString::new(format!("V={}", "x".repeat(200_000))).unwrap();
        let fine = c"PATH=/bin";
        let told = explain_too_long([c"sh"].into_iter(), [fine, &long].into_iter());
        assert!(told.contains("variable `V` has 200002 bytes") && told.contains("131071"), "{told}");
        let told = explain_too_long([c"sh", &*long].into_iter(), [fine].into_iter());
        assert!(told.contains("argument 1 has 200002 bytes"), "{told}");
        let told = explain_too_long([c"sh"].into_iter(), [fine].into_iter());
        assert!(told.contains("together") && told.contains("`PATH`"), "{told}");
    }

    #[test]
    fn kernel_takes_a_variable_that_fits_and_no_longer_one() {
        let run = |value: &str| std::process::Command::new("true").env_clear().env("V", value).status();
        let value = "x".repeat(STRING_BYTES_MAX - 3);
        assert!(fits_variable("V", &value) && run(&value).is_ok());
        let value = format!("{value}x");
        assert!(!fits_variable("V", &value));
        assert_eq!(run(&value).unwrap_err().raw_os_error(), Some(libc::E2BIG));
    }
}
