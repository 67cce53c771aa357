//! Says to the sources that are included from other crates that they are: their unit tests are run where they belong.

fn main() {
    println!("cargo::rustc-cfg=schedule");
    println!("cargo::rerun-if-changed=build.rs");
}
