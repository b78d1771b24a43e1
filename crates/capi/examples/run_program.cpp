// Runs the method `forward` of a program on a row of numbers: run_program MODEL.pte NUMBER...
#include <flambeau.hpp>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <vector>

int main(int argc, char **argv) {
  if (argc < 3) {
    std::cerr << "usage: run_program MODEL.pte NUMBER...\n";
    return 2;
  }
  try {
    const flambeau::Engine engine;
    const flambeau::Program program(engine, argv[1]);
    const flambeau::Method forward = program.load("forward");
    std::cout << forward.input(0).text << " -> " << forward.output(0).text << '\n';

    std::vector<float> row;
    for (int i = 2; i < argc; i++) {
      row.push_back(std::strtof(argv[i], nullptr));
    }
    const flambeau::Shape shape{1, row.size()};
    const auto x = flambeau::Tensor::take(shape, std::move(row));
    const flambeau::Tensor y = forward.run({x}).tensor(0);
    for (const float number : y.data<float>()) {
      std::cout << number << '\n';
    }
    return 0;
  } catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
