// swift-tools-version:5.9
import Foundation
import PackageDescription

// The C interface comes from an XCFramework beside this file, which scripts/xcframework.sh makes.
// Without one, pkg-config finds the library that scripts/install-c.sh installed.
let framework = "CFlambeau.xcframework"
let hasFramework = FileManager.default.fileExists(atPath: "\(Context.packageDirectory)/\(framework)")
let interface: Target =
  hasFramework
  ? .binaryTarget(name: "CFlambeau", path: framework)
  : .systemLibrary(name: "CFlambeau", pkgConfig: "flambeau")

let package = Package(
  name: "Flambeau",
  platforms: [.macOS(.v12), .iOS(.v15)],
  products: [.library(name: "Flambeau", targets: ["Flambeau"])],
  targets: [
    interface,
    .target(
      name: "Flambeau",
      dependencies: ["CFlambeau"],
      swiftSettings: [.enableExperimentalFeature("StrictConcurrency")],
      linkerSettings: hasFramework
        ? [.linkedFramework("CoreFoundation"), .linkedFramework("Security"), .linkedLibrary("iconv")]
        : []
    ),
    .testTarget(name: "FlambeauTests", dependencies: ["Flambeau"]),
  ]
)
