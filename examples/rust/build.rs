// Finds the installed library: TURBOQUANT_LIB_DIR, else pkg-config itself.
use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=TURBOQUANT_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let dir = env::var("TURBOQUANT_LIB_DIR").ok().or_else(pkg_config);
    if let Some(dir) = dir {
        println!("cargo:rustc-link-search=native={}", dir);
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir);
    }
    println!("cargo:rustc-link-lib=dylib=turboquant");
}

fn pkg_config() -> Option<String> {
    let out = Command::new("pkg-config")
        .args(["--variable=libdir", "turboquant"])
        .output()
        .ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let dir = text.trim();
    if out.status.success() && !dir.is_empty() {
        Some(dir.to_string())
    } else {
        None
    }
}
