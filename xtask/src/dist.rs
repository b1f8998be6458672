//! Makes what people install: a static binary with its manual as `.tar.gz` and as `.deb`, a list of what is in it (SBOM),
//! and checksums. The same commit gives the same bytes: paths are remapped, and all times are the commit's.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Outcome, read, root, run, sbom, write};

const MAINTAINER: &str = "The lowkey authors <lowkey@example.com>";
const NEWS: &str = "usr/share/doc/lowkey/CHANGELOG.md";
const SETTINGS: &str = "etc/lowkey/lowkey.env";
/// With glibc inside. How that looks names up is in `crates/lowkey-cli/src/names.rs`.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// How a static program is built. Crate `getrandom` looks for the system call of its name by `dlsym`, which finds nothing
/// in a static program, and falls back to `/dev/urandom`: told so, it makes the call at once. The Dockerfile has the same.
const STATIC: &str = r#"-C target-feature=+crt-static --cfg getrandom_backend="linux_raw""#;
/// The first glibc whose `libc.a` can look names up in files and by DNS without loading modules.
const GLIBC_MIN: (u32, u32) = (2, 34);
const SHELLS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/lowkey"),
    ("zsh", "usr/share/zsh/vendor-completions/_lowkey"),
    ("fish", "usr/share/fish/vendor_completions.d/lowkey.fish"),
];

pub(crate) fn dist(binary: Option<PathBuf>) -> Outcome {
    let root = root();
    let epoch = run(Command::new("git").current_dir(&root).args(["log", "-1", "--format=%ct"]))?;
    let epoch = epoch.trim().to_owned();
    let glibc = glibc()?;
    let binary = match binary {
        Some(binary) => binary,
        None => build(&root, &epoch)?,
    };
    let needed = needed_at_run_time(&binary)?;
    if let Some(needed) = &needed {
        eprintln!("xtask: {} is not static: it needs {needed}", binary.display());
    }
    let version = env!("CARGO_PKG_VERSION");
    let out = root.join("target/dist");
    if out.exists() {
        fs::remove_dir_all(&out).map_err(|error| format!("cannot clear {}: {error}", out.display()))?;
    }
    let deb_root = out.join("deb");
    let program = deb_root.join("usr/bin/lowkey");
    copy(&binary, &program, 0o755)?;
    run(Command::new("strip").arg(&program))?;
    for (shell, path) in SHELLS {
        let script = run(Command::new(&program).args(["completions", shell]))?;
        write(&deb_root.join(path), script)?;
    }
    run(Command::new(&program).arg("man").arg(deb_root.join("usr/share/man/man1")))?;
    copy(&root.join("LICENSE"), &deb_root.join("usr/share/doc/lowkey/copyright"), 0o644)?;
    copy(&root.join("CHANGELOG.md"), &deb_root.join(NEWS), 0o644)?;

    let name = format!("lowkey-{version}-x86_64-linux");
    archive(&out, &deb_root, &name, &root, &epoch)?;
    debian(&out, &deb_root, version, &root, &epoch)?;
    write(&out.join(format!("{name}.cdx.json")), sbom::cyclonedx(&root, TARGET, &glibc)?)?;
    fs::remove_dir_all(&deb_root).map_err(|error| format!("cannot clear up: {error}"))?;
    fs::remove_dir_all(out.join(&name)).map_err(|error| format!("cannot clear up: {error}"))?;
    let sums = run(Command::new("sh").current_dir(&out).args(["-c", "sha256sum -- *"]))?;
    write(&out.join("SHA256SUMS"), &sums)?;
    println!("{sums}{}", out.display());
    match needed {
        Some(needed) => Err(format!("packaged, but not for a release: the binary needs {needed}")),
        None => Ok(()),
    }
}

/// The version of the glibc that goes into the binary. Refuses one that is too old.
fn glibc() -> Outcome<String> {
    let found = run(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let version = found.trim().strip_prefix("glibc ").unwrap_or_default();
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if (major, minor) < GLIBC_MIN {
        let (major, minor) = GLIBC_MIN;
        return Err(format!(
            "a static binary needs glibc {major}.{minor} or newer, and this is {}",
            found.trim()
        ));
    }
    Ok(version.to_owned())
}

fn build(root: &Path, epoch: &str) -> Outcome<PathBuf> {
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .map_err(|_| "neither CARGO_HOME nor HOME is set".to_owned())?;
    let here = root.canonicalize().map_err(|error| format!("cannot find the repository: {error}"))?;
    let here = here.display();
    // With --target, or build scripts and macros would be static too, and macros must be libraries.
    let rust = format!("{STATIC} --remap-path-prefix={here}=/lowkey --remap-path-prefix={home}=/cargo");
    let c = format!("-ffile-prefix-map={here}=/lowkey -ffile-prefix-map={home}=/cargo");
    let status = Command::new("cargo")
        .current_dir(root)
        .args(["build", "--locked", "--release", "-p", "lowkey-cli", "--target", TARGET])
        .env("RUSTFLAGS", rust)
        .env("CFLAGS", c)
        .env("SOURCE_DATE_EPOCH", epoch)
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err(format!("the build for {TARGET} failed"));
    }
    Ok(root.join("target").join(TARGET).join("release/lowkey"))
}

/// What a program asks the system for when it starts, a loader or shared libraries; none if it is static.
fn needed_at_run_time(binary: &Path) -> Outcome<Option<String>> {
    const DYNAMIC: usize = 2;
    const INTERPRETER: usize = 3;
    const NEEDED: usize = 1;
    let bytes = fs::read(binary).map_err(|error| format!("cannot read {}: {error}", binary.display()))?;
    let unreadable = || format!("{} is no 64-bit program for Linux", binary.display());
    let number = |at: usize, size: usize| {
        let field = bytes.get(at..at + size)?;
        Some(field.iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return Err(unreadable());
    }
    let header = |at| number(at, 8).ok_or_else(unreadable);
    let short = |at| number(at, 2).ok_or_else(unreadable);
    let (table, size, count) = (header(0x20)?, short(0x36)?, short(0x38)?);
    let mut libraries = 0;
    for entry in (0..count).map(|place| table + place * size) {
        let (at, length) = (header(entry + 8)?, header(entry + 0x20)?);
        match number(entry, 4) {
            Some(INTERPRETER) => {
                let name = bytes.get(at..at + length).ok_or_else(unreadable)?;
                return Ok(Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()));
            }
            // Pairs of a tag and a value. A static program has them too, to move itself in memory.
            Some(DYNAMIC) => {
                let tags = (at..at + length).step_by(16).map(|pair| number(pair, 8));
                libraries = tags.filter(|tag| *tag == Some(NEEDED)).count();
            }
            _ => {}
        }
    }
    Ok((libraries > 0).then(|| format!("shared libraries ({libraries})")))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Outcome {
    let bytes = fs::read(from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
    write(to, bytes)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
        .map_err(|error| format!("cannot set the mode of {}: {error}", to.display()))
}

/// What a person unpacks who has no packages.
fn archive(out: &Path, deb_root: &Path, name: &str, root: &Path, epoch: &str) -> Outcome {
    let folder = out.join(name);
    copy(&deb_root.join("usr/bin/lowkey"), &folder.join("lowkey"), 0o755)?;
    for file in ["LICENSE", "CHANGELOG.md", "README.md", "packaging/lowkey.service", "packaging/lowkey.env"] {
        let short = file.rsplit('/').next().unwrap_or(file);
        copy(&root.join(file), &folder.join(short), 0o644)?;
    }
    for (_, path) in SHELLS {
        let short = path.rsplit('/').next().unwrap_or(path);
        let short = if short == "lowkey" { "lowkey.bash" } else { short };
        copy(&deb_root.join(path), &folder.join("completions").join(short), 0o644)?;
    }
    let pages = deb_root.join("usr/share/man/man1");
    run(Command::new("cp").arg("-r").arg(&pages).arg(folder.join("man1")))?;
    let file = format!("{name}.tar.gz");
    let pack = format!(
        "tar --sort=name --mtime=@{epoch} --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w -cf - {name} \
         | gzip -n -9 > {file}"
    );
    run(Command::new("sh").current_dir(out).args(["-c", &pack])).map(drop)
}

fn debian(out: &Path, deb_root: &Path, version: &str, root: &Path, epoch: &str) -> Outcome {
    copy(&root.join("packaging/lowkey.service"), &deb_root.join("lib/systemd/system/lowkey.service"), 0o644)?;
    copy(
        &root.join("packaging/debian/lintian-overrides"),
        &deb_root.join("usr/share/lintian/overrides/lowkey"),
        0o644,
    )?;
    for script in ["postinst", "prerm", "postrm"] {
        copy(&root.join("packaging/debian").join(script), &deb_root.join("DEBIAN").join(script), 0o755)?;
    }
    write(&deb_root.join("DEBIAN/conffiles"), format!("/{SETTINGS}\n"))?;
    // Debian sorts 1.0.0~rc.1 before 1.0.0.
    let version = version.replacen('-', "~", 1);
    let date = run(Command::new("date").env("LC_ALL", "C").args(["-u", "-R", "-d", &format!("@{epoch}")]))?;
    let changes = format!(
        "lowkey ({version}) stable; urgency=medium\n\n  * What is new: see CHANGELOG.md.gz beside this file.\n\n \
         -- {MAINTAINER}  {}\n",
        date.trim()
    );
    let changelog = deb_root.join("usr/share/doc/lowkey/changelog");
    write(&changelog, changes)?;
    // Debian wants texts that grow, and manuals, compressed; -n leaves the time out.
    let compress = "find usr/share/man usr/share/doc/lowkey/changelog usr/share/doc/lowkey/CHANGELOG.md -type f \
                    -exec gzip -9n {} +";
    run(Command::new("sh").current_dir(deb_root).args(["-c", compress]))?;
    let size = run(Command::new("du").args(["-sk", "--apparent-size"]).arg(deb_root))?;
    let size = size.split_whitespace().next().unwrap_or_default();
    let control = read(&root.join("packaging/debian/control"))?
        .replace("@VERSION@", &version)
        .replace("@SIZE@", size)
        .replace("@MAINTAINER@", MAINTAINER);
    write(&deb_root.join("DEBIAN/control"), control)?;
    run(Command::new("chmod").args(["-R", "u+rwX,go+rX,go-w"]).arg(deb_root))?;
    // Behind that, or everybody could read it: it may have secrets.
    copy(&root.join("packaging/lowkey.env"), &deb_root.join(SETTINGS), 0o640)?;
    run(Command::new("chmod").args(["755", "etc", "etc/lowkey"]).current_dir(deb_root))?;
    run(Command::new("dpkg-deb")
        .env("SOURCE_DATE_EPOCH", epoch)
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(deb_root)
        .arg(out.join(format!("lowkey_{version}_amd64.deb"))))
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_what_it_needs_at_run_time() {
        let folder = root().join(format!("target/tmp/needed-{}", std::process::id()));
        let source = folder.join("main.c");
        write(&source, "int main(void) { return 0; }\n").unwrap();
        let needed = |how: &[&str]| {
            let program = folder.join("program");
            run(Command::new("cc").args(how).arg("-o").arg(&program).arg(&source)).unwrap();
            needed_at_run_time(&program).unwrap()
        };
        assert_eq!(needed(&["-static"]), None);
        assert_eq!(needed(&["-static-pie"]), None, "it moves itself, as what Rust makes");
        assert!(needed(&["-Wl,--no-as-needed"]).unwrap().contains("ld-linux"));
        let libraries = needed(&["-shared", "-fPIC", "-nodefaultlibs", "-Wl,--no-as-needed", "-lc"]);
        assert_eq!(libraries.unwrap(), "shared libraries (1)");
        assert!(needed_at_run_time(&source).unwrap_err().contains("no 64-bit program"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_image_is_built_as_the_packages_are() {
        let dockerfile = read(&root().join("Dockerfile")).unwrap();
        assert!(dockerfile.contains(&format!("RUSTFLAGS='{STATIC}'")), "{STATIC} is not in\n{dockerfile}");
    }

    /// What the package has, from a program that is none: everything else is as in a release.
    #[test]
    fn the_package_keeps_settings_to_itself_and_compresses_what_debian_wants() {
        if Command::new("dpkg-deb").arg("--version").output().is_err() {
            assert!(std::env::var_os("LOWKEY_REQUIRE_ALL").is_none(), "there is no dpkg-deb");
            println!("skipped: there is no dpkg-deb");
            return;
        }
        let packages = [1, 2].map(|round| {
            let out = root().join(format!("target/tmp/deb-{}-{round}", std::process::id()));
            let deb_root = out.join("deb");
            copy(Path::new("/bin/true"), &deb_root.join("usr/bin/lowkey"), 0o755).unwrap();
            write(&deb_root.join("usr/share/man/man1/lowkey.1"), ".TH LOWKEY 1\n").unwrap();
            copy(&root().join("CHANGELOG.md"), &deb_root.join(NEWS), 0o644).unwrap();
            debian(&out, &deb_root, "1.2.3-rc.4", &root(), "1700000000").unwrap();
            let package = out.join("lowkey_1.2.3~rc.4_amd64.deb");
            let listed = run(Command::new("dpkg-deb").arg("--contents").arg(&package)).unwrap();
            let control = run(Command::new("dpkg-deb").arg("--field").arg(&package)).unwrap();
            let bytes = fs::read(&package).unwrap();
            fs::remove_dir_all(&out).unwrap();
            (listed, control, bytes)
        });
        let [(listed, control, bytes), (_, _, again)] = packages;
        let has = |mode: &str, path: &str| {
            let found = listed.lines().any(|line| line.starts_with(mode) && line.ends_with(path));
            assert!(found, "{path} with {mode} is not in\n{listed}");
        };
        has("-rw-r----- root/root", "./etc/lowkey/lowkey.env");
        has("drwxr-xr-x root/root", "./etc/lowkey/");
        has("-rw-r--r-- root/root", "./usr/share/man/man1/lowkey.1.gz");
        has("-rw-r--r-- root/root", "./usr/share/doc/lowkey/changelog.gz");
        has("-rw-r--r-- root/root", "./usr/share/doc/lowkey/CHANGELOG.md.gz");
        has("-rw-r--r-- root/root", "./lib/systemd/system/lowkey.service");
        has("-rwxr-xr-x root/root", "./usr/bin/lowkey");
        assert!(
            control.contains("\nVersion: 1.2.3~rc.4\n")
                && control.contains("\nRecommends: ca-certificates\n")
        );
        assert!(bytes == again, "the same commit gives the same bytes");
    }
}
