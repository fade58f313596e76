//! Tells the program which version of the rdkafka crate it is built with: the lock file knows.

use std::fs;

fn main() {
    println!("cargo:rerun-if-changed=Cargo.lock");
    let lock = fs::read_to_string("Cargo.lock").expect("Cargo.lock lies beside this file");
    let (_, package) = lock.split_once("name = \"rdkafka\"\nversion = \"").expect("rdkafka is locked");
    let (version, _) = package.split_once('"').expect("versions are quoted");
    println!("cargo:rustc-env=RDKAFKA_VERSION={version}");
}
